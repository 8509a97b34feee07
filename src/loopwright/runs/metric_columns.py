"""The numbers of a run as columns, kept up to date while `metrics.jsonl` grows.

Only new lines are read. A file that was replaced or cut (a run that resumes rewrites it) is read again from its
beginning, under a new `edition`: a reader that knows another edition has to start again. An edition names the file, so
readers of another process, or of a later one, know it too.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.runs.appended_lines import AppendedLines

FIXED = frozenset({"step", "time"})
LAST_STEP = 1 << 53


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
        self._lines = AppendedLines(path, self._clear)
        self._clear()

    def _clear(self) -> None:
        self._steps = array("q")
        self._times = array("d")
        # The rows that have a number of that name, and the numbers: most lines of evaluations have few of them.
        self._values: dict[str, tuple[array[int], array[float]]] = {}

    @property
    def edition(self) -> str:
        """Names what was read; empty without a file."""
        return self._lines.edition

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
        rows, _ = self._values.get("time/train", self._values.get("reward/mean", _NOTHING))
        return [self._times[row] for row in rows if math.isfinite(self._times[row])]

    @property
    def time_of(self) -> dict[int, float]:
        """When each step was written last."""
        return dict(zip(self._steps, self._times, strict=True))

    @property
    def last_step(self) -> int:
        return max(self._steps, default=0)

    def refresh(self) -> None:
        """Read what was appended since the last call."""
        for _, line in self._lines.read():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and isinstance(record.get("step"), int) and abs(record["step"]) < LAST_STEP:
                self._add(record)

    def _add(self, record: Mapping[str, Any]) -> None:
        row = len(self._steps)
        self._steps.append(record["step"])
        self._times.append(_number(record.get("time")))
        for name, value in record.items():
            number = _number(value)
            if name not in FIXED and number == number:
                rows, values = self._values.setdefault(name, (array("q"), array("d")))
                rows.append(row)
                values.append(number)

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
        return sorted(
            {self._steps[row]: value for row, value in zip(*self._values.get(name, _NOTHING), strict=True)}.items()
        )

    def _column(self, name: str) -> array[float]:
        column = array("d", [math.nan]) * self.rows
        for row, value in zip(*self._values.get(name, _NOTHING), strict=True):
            column[row] = value
        return column


_NOTHING: tuple[array[int], array[float]] = array("q"), array("d")


def _number(value: Any) -> float:
    """A finite number; NaN for all else."""
    if not isinstance(value, int | float):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _means(values: Sequence[float], bucket: int) -> list[float]:
    means = []
    for start in range(0, len(values), bucket):
        known = [value for value in values[start : start + bucket] if value == value]
        means.append(math.fsum(known) / len(known) if known else math.nan)
    return means
