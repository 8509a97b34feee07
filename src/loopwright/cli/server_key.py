"""The key of a server that a command starts."""

from __future__ import annotations

import os
from pathlib import Path

from loopwright.serve.keys import check_key, new_key, read_key, write_key


def given_key(file: Path | None, variable: str) -> str | None:
    """The key in `file`, or else in the environment variable. It is removed from the environment, so that no child
    process sees it."""
    if file is not None:
        return read_key(file)
    given = os.environ.pop(variable, None)
    return None if given is None else check_key(given, f"the environment variable {variable}")


def own_key(file: Path | None, variable: str, store: Path) -> tuple[str, Path | None]:
    """The key that was given. If nobody gave one, it is kept in a file beside the store, which is returned too."""
    if (given := given_key(file, variable)) is not None:
        return given, None
    made = store.with_suffix(".key")
    if made.exists():
        return read_key(made), made
    key = new_key()
    write_key(made, key)
    return key, made
