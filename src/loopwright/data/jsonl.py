"""Tasks from a JSONL file. Every line is checked when the file is opened. Only the positions of lines are kept in
memory.

If the file changes later, it is refused instead of being read at the old positions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from loopwright.data.mapping import RowMap
from loopwright.errors import DataError
from loopwright.types import Task


class _Edition(NamedTuple):
    """What changes in a file when it is edited."""

    size: int
    modified_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class JsonlSource:
    """`starts` and `lines` hold the byte offset and the number (from 1) of each line that has a task."""

    path: Path
    rows: RowMap
    edition: _Edition
    starts: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]

    @classmethod
    def open(cls, path: Path, rows: RowMap | None = None) -> JsonlSource:
        """Read the whole file once. The first malformed line raises an error that names the line."""
        rows = rows or RowMap()
        starts: list[int] = []
        lines: list[int] = []
        position = 0
        with _opened(path) as file:
            edition = _edition(file)
            for line, raw in enumerate(file, 1):
                if raw.strip():
                    _task(path, rows, line, raw)
                    starts.append(position)
                    lines.append(line)
                position += len(raw)
        if not starts:
            raise DataError(f"{path}: there are no tasks in it", remedy="write one task per line", file=str(path))
        return cls(path, rows, edition, np.array(starts, np.int64), np.array(lines, np.int64))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Task:
        start, line = int(self.starts[index]), int(self.lines[index])
        with _opened(self.path) as file:
            if _edition(file) != self.edition:
                raise DataError(
                    f"{self.path}: was changed while its tasks are in use",
                    remedy="start again to use it as it is now, and edit a copy next time",
                    file=str(self.path),
                )
            file.seek(start)
            return _task(self.path, self.rows, line, file.readline())


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror}",
            remedy="name a JSONL file relative to the config file's folder",
            file=str(path),
        ) from error


def _edition(file: BinaryIO) -> _Edition:
    status = os.fstat(file.fileno())
    return _Edition(status.st_size, status.st_mtime_ns)


def _task(path: Path, rows: RowMap, line: int, raw: bytes) -> Task:
    where = f"{path}:{line}"
    try:
        row = json.loads(raw, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: this line is not valid JSON: {error}",
            remedy='write one object per line, like {"prompt": "What is 2+2?", "truth": 4}',
            file=str(path),
            line=line,
        ) from error
    return rows.task(row, default_id=f"{path.stem}:{line}", where=where, file=str(path), line=line)


def _not_json(constant: str) -> None:
    """Refuse NaN and Infinity: Python reads them, but JSON has neither, so they could not be stored."""
    raise ValueError(f"{constant} is no JSON value")
