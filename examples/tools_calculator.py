"""Sums that are hard in one's head and easy with a calculator, and the calculator: a plain function.

The docstring and the annotations are what the model is told. `state` is not: it is a dict that lives as long as one
rollout, and the calls of that rollout share it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from loopwright import Message, Task

SIZE = 400
HELD_OUT = 100
BATTERY = 4


def add(a: int, b: int, state: dict[str, Any]) -> int:
    """Add two numbers."""
    state["calls"] = state.get("calls", 0) + 1
    if state["calls"] > BATTERY:
        raise ValueError("the calculator's battery is empty")  # the model reads this
    return a + b


def train_tasks() -> Iterator[Task]:
    return _tasks(0, SIZE)


def heldout_tasks() -> Iterator[Task]:
    return _tasks(SIZE, SIZE + HELD_OUT)


def _tasks(begin: int, end: int) -> Iterator[Task]:
    """Each begins with a few worked examples: without them, a small model writes no call at all."""
    draw = random.Random(7)
    numbers = range(101, 1000)
    pairs = list(dict.fromkeys((draw.choice(numbers), draw.choice(numbers)) for _ in range(2 * (SIZE + HELD_OUT))))
    for a, b in pairs[begin:end]:
        asked: Message = {"role": "user", "content": f"{a}+{b}"}
        yield Task(f"{a}+{b}", (*WORKED, asked), truth=a + b)


def _worked(a: int, b: int) -> Iterator[Message]:
    call = {"id": f"{a}-{b}", "name": "add", "arguments": f'{{"a": {a}, "b": {b}}}'}
    yield {"role": "user", "content": f"{a}+{b}"}
    yield {"role": "assistant", "content": "", "tool_calls": [call]}
    yield {"role": "tool", "content": str(a + b), "tool_call_id": call["id"], "name": "add"}
    yield {"role": "assistant", "content": str(a + b)}


WORKED = tuple(message for pair in ((21, 32), (640, 318), (35, 704), (517, 925)) for message in _worked(*pair))
