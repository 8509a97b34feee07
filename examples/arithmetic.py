"""Two-number addition: a task source is a function that returns tasks."""

from __future__ import annotations

import random

from loopwright import Task

LARGEST = 30
HELD_OUT = 200


def _problem(a: int, b: int) -> Task:
    return Task.ask(f"{a}+{b}", f"What is {a}+{b}? Answer with the number only.", truth=a + b)


def _split() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Unordered pairs, shuffled once: the first are held out, so that b+a never gives a+b away."""
    pairs = [(a, b) for a in range(1, LARGEST + 1) for b in range(a, LARGEST + 1)]
    random.Random(0).shuffle(pairs)
    return pairs[:HELD_OUT], pairs[HELD_OUT:]


def heldout_tasks() -> list[Task]:
    """In either order, as in training: a model may have learned 22+4 long before 4+22."""
    drawn = random.Random(1)
    return [_problem(*drawn.sample(pair, 2)) for pair in _split()[0]]


def a_few_heldout_tasks() -> list[Task]:
    return heldout_tasks()[:16]


def train_tasks() -> list[Task]:
    return [_problem(*order) for a, b in _split()[1] for order in sorted({(a, b), (b, a)})]
