"""The tasks of the GRPO benchmarks: one file that both sides read, in one order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path

from loopwright import Task
from loopwright.errors import BenchError

WORDS = ("red", "green", "blue", "north", "south", "river", "stone", "light", "paper", "water", "table", "house")
LONG_TASKS = 64
ATTEMPTS = 20


def addition(checkout: Path) -> list[Task]:
    """The training problems of examples/arithmetic.py, shuffled once."""
    from loopwright.config import PythonData
    from loopwright.data import open_source

    source = open_source(PythonData(kind="python", path="arithmetic.py:train_tasks"), checkout / "examples")
    tasks = [source[i] for i in range(len(source))]
    random.Random(0).shuffle(tasks)
    return tasks


def lengthened(tasks: Sequence[Task], tokens: int, count: Callable[[str], int]) -> list[Task]:
    """Some of the tasks, each after notes that make its prompt exactly `tokens` long."""
    return [
        Task.ask(task.id, with_notes(str(task.messages[0]["content"]), tokens, count, start=i), task.truth)
        for i, task in enumerate(tasks[:LONG_TASKS])
    ]


def with_notes(question: str, tokens: int, count: Callable[[str], int], *, start: int = 0) -> str:
    """The question after as many words as it takes to count `tokens`; `start` makes prompts differ from each other."""
    words = 0
    for _ in range(ATTEMPTS):
        notes = " ".join(islice(cycle(WORDS), start % len(WORDS), start % len(WORDS) + words))
        text = f"Notes {start}: {notes}\n{question}"
        missing = tokens - count(text)
        if missing == 0:
            return text
        # Nearly every word is one token, so this ends after a few attempts.
        words = max(0, words + missing)
    raise BenchError(
        f"no prompt of exactly {tokens} tokens was found for {question!r}",
        remedy="choose a longer prompt or other words",
    )


def write_tasks(tasks: Sequence[Task], file: Path) -> None:
    records = ({"id": task.id, "messages": list(task.messages), "truth": task.truth} for task in tasks)
    file.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
