"""Makes a Task from a row of any file, in the same way for all kinds: by its columns, or by the user's own function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, NoReturn

from loopwright.config import Columns, RowsConfig, load_symbol, user_line
from loopwright.config.problems import suggest
from loopwright.data.records import PROMPT_KEYS, TRUTH_KEYS, Refuse, task_of
from loopwright.errors import DataError
from loopwright.types import Task

USUAL_NAMES = {"prompt": PROMPT_KEYS, "truth": TRUTH_KEYS, "id": ("id",)}
"""The column names that are tried for the parts of a task if the config does not name columns."""

BY_MAP = "or leave the file as it is: make the task with a data.map"
BY_COLUMNS = "or leave the file as it is: name the columns that are meant in data.columns, or give a data.map"


@dataclass(frozen=True, slots=True)
class RowMap:
    """`columns` names the column of each part of a task. All other columns become metadata.

    With `function` (named `path` in the config) the user's code makes the task. In a table every row has every column;
    with `nulls_are_absent`, an empty column counts as missing.
    """

    columns: Mapping[str, str] | None = None
    path: str = ""
    function: Callable[[Any], object] | None = None
    nulls_are_absent: bool = False

    @classmethod
    def of(cls, data: RowsConfig, base: Path) -> RowMap:
        return cls(
            columns=_given(data.columns),
            path=data.map or "",
            function=_function(data.map, base) if data.map else None,
            nulls_are_absent=data.nulls_are_absent,
        )

    def task(self, row: object, /, *, default_id: str, where: str, **facts: Any) -> Task:
        """The row as a task. Every error message starts with `where`."""

        def refuse(problem: str, remedy: str) -> NoReturn:
            raise DataError(f"{where}: {problem}", remedy=remedy, **facts)

        item = row
        if self.function is not None:
            try:
                item = self.function(row)
            except (Exception, SystemExit) as error:  # the boundary around the user's code
                problem = f"{where}: {self.path} raised at {user_line(error)}"
                raise DataError(problem, remedy="fix the function, or the row", **facts) from error
        elif isinstance(row, Mapping):
            item = self._renamed(row, refuse)
        try:
            return task_of(item, default_id=default_id, where=where, **facts)
        except DataError as error:
            if self.function is not None:
                raise
            # Unnamed columns stay in the metadata. If one cannot be stored, naming other columns does not help.
            without_editing = BY_MAP if "field" in error.facts else BY_COLUMNS
            raise DataError(error.message, remedy=f"{error.remedy}; {without_editing}", **error.facts) from error

    def _renamed(self, row: Mapping[str, Any], refuse: Refuse) -> Mapping[str, Any]:
        """The row with its named columns renamed to the parts of a task. A column with a usual name that is not used
        becomes metadata."""
        named = self.columns or {}
        parts = {part: _reach(row, column, refuse) for part, column in named.items()}
        absent = {name for name, value in row.items() if value is None} if self.nulls_are_absent else set()
        rest = {name: value for name, value in row.items() if name not in absent and name not in named.values()}
        not_meant = [name for part in named for name in USUAL_NAMES[part] if name in rest]
        if not_meant:
            aside = {name: rest.pop(name) for name in not_meant}
            rest["metadata"] = {**aside, **_metadata(rest.get("metadata", {}), refuse)}
        return {**rest, **parts}


@contextmanager
def reading_row(where: str, **facts: Any) -> Iterator[None]:
    """Wraps the step from a table row to Python objects, which can fail: Python has no date after the year 9999."""
    try:
        yield
    except (ValueError, ArithmeticError, LookupError, NotImplementedError) as error:
        raise DataError(f"{where}: cannot be read: {error}", remedy="fix the row in its file", **facts) from error


def _given(columns: Columns) -> dict[str, str]:
    return {part: column for part in USUAL_NAMES if (column := getattr(columns, part)) is not None}


def _metadata(value: object, refuse: Refuse) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        refuse("metadata must be an object", "rename that column, or make the task with data.map")
    return value


def _reach(row: Mapping[str, Any], column: str, refuse: Refuse) -> Any:
    """The value of a column. `a.b` is the column `a.b` or, if there is none, the field `b` of column `a`."""
    if column in row:
        return row[column]
    here: Any = row
    steps = column.split(".")
    for depth, step in enumerate(steps):
        if here is None:
            return None
        if not isinstance(here, Mapping) or step not in here:
            what = f"fields in {'.'.join(steps[:depth])!r}" if depth else "columns"
            known = sorted(here) if isinstance(here, Mapping) else []
            refuse(f"there is no column {column!r}", suggest(step, known, what))
        here = here[step]
    return here


def _function(path: str, base: Path) -> Callable[[Any], object]:
    function = load_symbol(path, base)
    if not callable(function) or iscoroutinefunction(function):
        raise DataError(
            f"{path} is not a plain function",
            remedy="name a function, not async, that takes a row and returns a task",
            function=path,
        )
    return function
