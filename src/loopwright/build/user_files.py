"""Which files of the user a part of the run needs, so that they can be sent with it to other machines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from loopwright.config.imports import is_object_name, split_symbol
from loopwright.config.needs import Need, Outside


def named_files(needs: Iterable[Need], base: Path) -> list[str]:
    """The files that these needs name, as the config writes them: relative to `base`, or absolute."""
    files = dict[str, None]()
    for need in needs:
        if need.what is Outside.FILE:
            files[need.name] = None
        elif need.what is Outside.CODE and not is_object_name(need.name):
            symbol = split_symbol(need.name, base)
            if symbol.file is not None:
                files[symbol.place] = None
    return list(files)
