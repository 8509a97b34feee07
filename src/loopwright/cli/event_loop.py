"""The event loop of a command that runs agents: it ends, whatever they do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LAST_SECONDS = 5.0
"""How long tasks that are left may take to end. Whoever started them has given them their grace already."""


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """What `main` returns or raises. `asyncio.run` would wait for ever for an agent that cannot be cancelled."""
    with asyncio.Runner() as runner:
        try:
            return runner.run(main)
        finally:
            runner.run(_let_go())


async def _let_go() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=LAST_SECONDS)
    for task in left:
        # The process ends without them. Their owner has warned of them; asyncio need not do it again.
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        asyncio.tasks._unregister_task(task)
