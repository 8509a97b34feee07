"""Tasks from the user's function. It is called once, and must return a finite number of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from loopwright.config import NO_OBJECTS, Objects, load_symbol, user_line
from loopwright.data.records import task_of
from loopwright.errors import DataError
from loopwright.types import Task


@dataclass(frozen=True, slots=True)
class PythonSource:
    """The tasks that a function returned, in its order."""

    tasks: tuple[Task, ...]

    @classmethod
    def open(cls, path: str, args: Mapping[str, Any], base: Path, objects: Objects = NO_OBJECTS) -> PythonSource:
        """Call the function that `path` names with `args`. It returns Tasks, or records as in a JSONL file."""
        function = load_symbol(path, base, objects)
        if not callable(function) or iscoroutinefunction(function):
            raise DataError(
                f"{path} is not a plain function",
                remedy="name a function, not async, that returns tasks",
                function=path,
            )
        try:
            # The boundary around the user's code. A generator runs, and may raise, only while it is turned into a list.
            items = _listed(path, function(**args))
        except DataError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(
                f"{path} raised at {user_line(error)}", remedy="fix the function, or its args", function=path
            ) from error
        if not items:
            raise DataError(f"{path} returned no tasks", remedy="return at least one task", function=path)
        name = path.rpartition(":")[2]
        return cls(
            tuple(
                task_of(item, default_id=f"{name}:{number}", where=f"{path}, task {number}", function=path)
                for number, item in enumerate(items)
            )
        )

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
