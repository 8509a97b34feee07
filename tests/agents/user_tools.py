"""Tools as a user writes them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Annotated, Any, Literal

from loopwright import Task


def add(a: int, b: Annotated[int, "the other number"] = 1) -> int:
    """Add two
    numbers.

    This is not for the model.
    """
    return a + b


async def look_up(words: list[str], where: Literal["here", "there"] | None = None) -> dict[str, Any]:
    """Look words up."""
    await asyncio.sleep(0)
    return {"found": words, "where": where}


def count(state: dict[str, Any], task: Task) -> str:
    """Count the calls."""
    state["calls"] = state.get("calls", 0) + 1
    return f"{task.id}: {state['calls']}"


def broken(what: str) -> None:
    """Fail."""
    raise KeyError(what)


def sleepy() -> None:
    """Block a thread for too long."""
    time.sleep(0.5)


meeting = threading.Barrier(2)


def meet(seconds: float) -> str:
    """Wait for another call."""
    try:
        meeting.wait(seconds)
    except threading.BrokenBarrierError:
        meeting.reset()
        return "alone"
    return "together"


async def slow() -> str:
    """Wait too long."""
    await asyncio.sleep(30)
    return "never"


def everything(*words: str) -> str:
    return "no model can fill this in"


NOT_A_FUNCTION = 3
