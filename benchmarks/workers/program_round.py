"""A round of the remote benchmark, whoever starts the programs: so many of them, several at a time."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.workers import five_turns

LOOK_SECONDS = 0.02
CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children")
"""Processes that the main thread started and nobody has waited for yet. Reading it is cheap enough to do it often."""


def program(turns: int, question: str) -> list[str]:
    """The command. Python starts in its quickest way: how long it takes is not what is measured."""
    return [sys.executable, "-I", "-S", five_turns.__file__, str(turns), question]


def children() -> int:
    return len(CHILDREN.read_text().split())


async def run_programs(count: int, at_once: int, run: Callable[[int], Awaitable[None]]) -> dict[str, Any]:
    """Run programs 0 to `count`, at most `at_once` at a time. Returns the CPU seconds of this process alone, and the
    most children that it had at a time, without those that were there before."""
    started, most, numbers, before = time.process_time(), 0, iter(range(count)), children()

    async def one_after_the_other() -> None:
        for number in numbers:
            await run(number)

    async def look() -> None:
        nonlocal most
        while True:
            most = max(most, children() - before)
            await asyncio.sleep(LOOK_SECONDS)

    looking = asyncio.create_task(look())
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(one_after_the_other())
    finally:
        looking.cancel()
    return {"driver_cpu_seconds": time.process_time() - started, "processes": most}
