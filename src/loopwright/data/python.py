"""Tasks from the user's function: it is called once, and what it returns must be finite.

Tasks are stored beside their rollouts, so what JSON cannot hold is refused here, before anything is sampled; a task
that passes is the same in a run that was resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from loopwright.config import load_symbol, user_line
from loopwright.data.plain import plain
from loopwright.data.records import task_from
from loopwright.errors import DataError
from loopwright.types import Task


@dataclass(frozen=True, slots=True)
class PythonSource:
    """The tasks that a function gave, in its order."""

    tasks: tuple[Task, ...]

    @classmethod
    def open(cls, path: str, args: Mapping[str, Any], base: Path) -> PythonSource:
        """Call the function that `path` names with `args`; it gives Tasks, or records as in a JSONL file."""
        function = load_symbol(path, base)
        if not callable(function) or iscoroutinefunction(function):
            raise DataError(
                f"{path} is not a plain function",
                remedy="name a function, not async, that returns tasks",
                function=path,
            )
        try:
            # The boundary round the user's code; a generator runs, and may raise, only while it is listed.
            items = _listed(path, function(**args))
        except DataError:
            raise
        except Exception as error:
            raise DataError(
                f"{path} raised at {user_line(error)}", remedy="mend the function, or its args", function=path
            ) from error
        if not items:
            raise DataError(f"{path} returned no tasks", remedy="return at least one task", function=path)
        return cls(tuple(_task(path, number, item) for number, item in enumerate(items)))

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> Task:
        return self.tasks[index]


def _listed(path: str, result: object) -> list[object]:
    if not isinstance(result, Iterable) or isinstance(result, str | Mapping):
        raise DataError(
            f"{path} must return tasks, one after the other; it returned {type(result).__name__}",
            remedy="return a list of Task, or yield them",
            function=path,
        )
    return list(result)


def _task(path: str, number: int, item: object) -> Task:
    name, where = path.rpartition(":")[2], f"{path}, task {number}"
    record = {field.name: getattr(item, field.name) for field in fields(Task)} if isinstance(item, Task) else item
    if isinstance(record, Mapping):
        record = _plain(path, where, record)
    return task_from(record, default_id=f"{name}:{number}", where=where, function=path)


def _plain(path: str, where: str, record: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for field, value in record.items():
        try:
            kept |= plain({field: value})
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"{where}: {field} cannot be stored as JSON: {error}",
                remedy="use strings, finite numbers, booleans, None, lists, and dicts whose keys are text",
                function=path,
                field=field,
            ) from error
    return kept
