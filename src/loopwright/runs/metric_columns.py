"""The numbers of a run as columns, kept up to date while `metrics.jsonl` grows.

Only new bytes are read. A file that was replaced or cut (a run that resumes rewrites it) is read again from its
beginning, under a new `edition`: a reader that knows another edition has to start again. An edition names the file, so
readers of another process, or of a later one, know it too.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_BYTES = 8 << 20
"""How much is read at once."""
FIXED = frozenset({"step", "time"})


@dataclass(frozen=True, slots=True)
class MetricRows:
    """Numbers of some metrics, one row for each line of the file. NaN: the line has no such number.

    With `bucket` above 1, each row is the mean of so many lines.
    """

    edition: str
    rows: int
    """How many lines the file has: the place from which to read on."""
    first: int
    steps: Sequence[int]
    values: Mapping[str, Sequence[float]]
    bucket: int = 1


class MetricColumns:
    """The columns of one file. Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cuts = 0
        self._file: tuple[int, int] | None = None
        self._clear()

    def _clear(self) -> None:
        self._offset = 0
        self._torn = b""
        self._steps = array("q")
        self._times = array("d")
        self._values: dict[str, array[float]] = {}

    @property
    def edition(self) -> str:
        """Names what was read; empty without a file."""
        return "" if self._file is None else "-".join(f"{part:x}" for part in (*self._file, self._cuts))

    @property
    def rows(self) -> int:
        return len(self._steps)

    @property
    def names(self) -> list[str]:
        return sorted(self._values)

    @property
    def last_time(self) -> float | None:
        return self._times[-1] if self._times else None

    @property
    def times(self) -> list[float]:
        """When each train step was written, without lines that belong to no step."""
        column = self._values.get("time/train", self._values.get("reward/mean", array("d")))
        return [time for time, value in zip(self._times, column, strict=False) if value == value and time == time]

    @property
    def last_step(self) -> int:
        return max(self._steps, default=0)

    def refresh(self) -> None:
        """Read what was appended since the last call."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if self._file != (found.st_dev, found.st_ino):
                    self._file, self._cuts = (found.st_dev, found.st_ino), 0
                    self._clear()
                elif found.st_size < self._offset:
                    self._cuts += 1
                    self._clear()
                file.seek(self._offset)
                while piece := file.read(MOST_BYTES):
                    self._offset += len(piece)
                    self._take(piece)
        except FileNotFoundError:
            self._file = None
            self._clear()

    def _take(self, piece: bytes) -> None:
        *lines, self._torn = (self._torn + piece).split(b"\n")
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                self._add(record)

    def _add(self, record: Mapping[str, Any]) -> None:
        row = len(self._steps)
        self._steps.append(record["step"])
        time = record.get("time")
        self._times.append(float(time) if isinstance(time, int | float) else math.nan)
        for name, value in record.items():
            if name in FIXED or not isinstance(value, int | float):
                continue
            column = self._values.get(name)
            if column is None:
                column = self._values[name] = array("d")
            if len(column) < row:
                column.extend([math.nan] * (row - len(column)))
            column.append(float(value))

    def read(self, names: Iterable[str], *, since: int = 0, most: int = 2000) -> MetricRows:
        """The rows from `since` on. More than `most` rows are averaged in buckets, which begin at the first row."""
        bucket = -(-self.rows // most) if self.rows else 1
        since = since if bucket == 1 else 0
        steps: Sequence[int] = self._steps[since:]
        found: dict[str, Sequence[float]] = {name: self._column(name)[since:] for name in names if name in self._values}
        if bucket > 1:
            starts = range(0, len(steps), bucket)
            steps = array("q", (steps[start] for start in starts))
            found = {name: _means(values, bucket) for name, values in found.items()}
        return MetricRows(self.edition, self.rows, since, steps, found, bucket)

    def series(self, name: str) -> list[tuple[int, float]]:
        """One metric as (step, value), over the steps that have it; the last line of a step counts."""
        found = {step: value for step, value in zip(self._steps, self._column(name), strict=True) if value == value}
        return sorted(found.items())

    def _column(self, name: str) -> array[float]:
        column = self._values.get(name, array("d"))
        return column + array("d", [math.nan] * (self.rows - len(column)))


def _means(values: Sequence[float], bucket: int) -> list[float]:
    means = []
    for start in range(0, len(values), bucket):
        known = [value for value in values[start : start + bucket] if value == value]
        means.append(math.fsum(known) / len(known) if known else math.nan)
    return means
