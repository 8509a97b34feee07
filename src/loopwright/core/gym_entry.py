"""What the scorer of a reasoning_gym family needs to know about a task. It is kept in the task's metadata.

Scorers distinguish tuples from lists and use numbers as keys; JSON keeps neither. So the entry's own metadata is stored
as the text of a Python literal. Making the entry again from its seed would not work: some families depend on the
process's hash seed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import numpy as np

from loopwright.types import Task

FAMILY, CONFIG, QUESTION, ENTRY = "family", "config", "question", "entry"


def entry_metadata(family: str, config: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a task made from `entry`. Raises ValueError for values that are no Python literals."""
    text = repr(_without_numpy(entry["metadata"]))
    try:
        same = ast.literal_eval(text) == entry["metadata"]
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"its entries hold more than plain values: {error}") from error
    if not same:
        raise ValueError("its entries hold more than plain values")
    return {FAMILY: family, CONFIG: dict(config), QUESTION: entry["question"], ENTRY: text}


def entry_of(task: Task) -> dict[str, Any]:
    """The entry that the task was made from. Raises KeyError for a task that was not made from one."""
    metadata = task.metadata
    return {
        "question": metadata[QUESTION],
        "answer": task.truth,
        "metadata": ast.literal_eval(metadata[ENTRY]),
    }


def _without_numpy(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {_without_numpy(key): _without_numpy(held) for key, held in value.items()}
    if isinstance(value, list | tuple | set):
        return type(value)(_without_numpy(held) for held in value)
    return value
