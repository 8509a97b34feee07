"""Event loops of commands. The loop of a command that runs agents ends even if they ignore cancellation. The loop of a
server is uvloop's, if it is installed."""

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
"""After how many new objects the garbage collector of a server runs."""
MACOS_FILES = 10_240
"""The most open files that macOS permits to a process."""


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run `main`. `asyncio.run` would wait for ever for an agent that cannot be cancelled."""
    with asyncio.Runner() as runner:
        try:
            return runner.run(main)
        finally:
            runner.run(cancel_leftovers())


def run_server(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on uvloop's event loop, if it is installed."""
    _open_many_files()
    factory = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def _open_many_files() -> None:
    """Allow as many open files as the system permits: each client needs one, and each answer in flight another."""
    # Windows has no such limit, and no such module.
    if importlib.util.find_spec("resource") is not None:
        import resource

        soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        # macOS reports that there is no limit, but refuses to set none.
        for wanted in (most, max(soft, MACOS_FILES)):
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
                return


def settle_down() -> None:
    """Freeze what the server is made of, because it stays until the end. Collect garbage less often, because most
    objects of a request are freed without it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
