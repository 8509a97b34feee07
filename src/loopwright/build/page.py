"""The page beside a run, from the config."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

from loopwright.config import RunConfig
from loopwright.runs.run_folder import RunFolder
from loopwright.serve.keys import read_key
from loopwright.track.console import Console

log = logging.getLogger("loopwright")


def open_run_page(
    config: RunConfig, folder: RunFolder, console: Console | None, env: Mapping[str, str]
) -> AbstractAsyncContextManager[None]:
    """A context that keeps the page open, if the run is to have one. Its link has the key if a person reads it."""
    if not config.track.ui:
        return nullcontext()
    from loopwright.ui.beside import page_beside

    def ready(url: str) -> None:
        if console is None:
            log.info("the page of this run is at %s", url)
        elif sys.stdout.isatty():
            console.say(f"page: {url}#key={read_key(folder.ui_key)}")
        else:
            console.say(f"page: {url}  (the key is in {folder.ui_key})")

    return page_beside(folder, config.track.ui_port, env, ready)
