"""Tasks that are hard in one's head and easy with a calculator, and the calculator: two plain functions.

The docstring and the annotations are what the model is told. `state` is not: it is a dict that lives as long as one
rollout, and the calls of that rollout share it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from loopwright import Task

SIZE = 400
HELD_OUT = 100


def tasks(split: str = "train") -> Iterator[Task]:
    """Products and sums of numbers with two or three digits. The splits share no task."""
    draw = random.Random(7)
    made: dict[str, Task] = {}
    while len(made) < SIZE + HELD_OUT:
        sign = draw.choice("*+")
        a, b = draw.randint(12, 99), draw.randint(100, 999)
        truth = a * b if sign == "*" else a + b
        made[f"{a}{sign}{b}"] = Task.ask(f"{a}{sign}{b}", f"What is {a} {sign} {b}?", truth=truth)
    every = list(made.values())
    yield from every[:SIZE] if split == "train" else every[SIZE:]


def held_out() -> Iterator[Task]:
    return tasks("held out")


def multiply(a: int, b: int, state: dict[str, Any]) -> int:
    """Multiply two whole numbers."""
    return _kept(a * b, state)


def add(a: int, b: int, state: dict[str, Any]) -> int:
    """Add two whole numbers."""
    return _kept(a + b, state)


def recall(state: dict[str, Any]) -> int:
    """Say the latest result again."""
    if "latest" not in state:
        raise ValueError("nothing was computed yet")
    return int(state["latest"])


def _kept(result: int, state: dict[str, Any]) -> int:
    state["latest"] = result
    return result
