"""Event loops of commands: that of one that runs agents ends, whatever they do; that of a server is a quick one."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from loopwright.core.together import cancel_leftovers

T = TypeVar("T")

YOUNG_OBJECTS = 10_000
"""So many new objects are looked through at a time."""
MACOS_FILES = 10_240
"""What macOS permits to every process."""


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """What `main` returns or raises. `asyncio.run` would wait for ever for an agent that cannot be cancelled."""
    with asyncio.Runner() as runner:
        try:
            return runner.run(main)
        finally:
            runner.run(cancel_leftovers())


def run_server(main: Coroutine[Any, Any, T]) -> T:
    """What `main` returns, on uvloop's event loop where it is installed."""
    _open_many_files()
    factory = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def _open_many_files() -> None:
    """As many as the system permits: each client is one, and each answer under way another."""
    # Windows has no such limit, and no such module.
    if importlib.util.find_spec("resource") is not None:
        import resource

        soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        # macOS says that there is no limit, and refuses to be told so.
        for wanted in (most, max(soft, MACOS_FILES)):
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
                return


def settle_down() -> None:
    """A server has started: what it is made of stays, and nobody need look whether it is garbage. Of what a request
    makes, most is gone before a later look."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
