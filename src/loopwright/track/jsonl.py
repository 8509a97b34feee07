"""Metrics and events as JSON lines, in the order of writing.

A crash may leave an incomplete last line. Readers skip it, and the next write replaces it.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from loopwright.core.redaction import Redactor
from loopwright.errors import RunError
from loopwright.track.events import Event, timed

METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
"""The names of both files in the folder of a run."""

_CHUNK = 4096


class JsonlTracker:
    """Writes `metrics.jsonl` and `events.jsonl` in `folder`. When a call returns, its line is handed to the system.

    Secrets that `redact` knows are removed from events.
    """

    def __init__(self, folder: Path, redact: Redactor | None = None) -> None:
        self._redact = redact or Redactor()
        self._metrics = JsonlFile(folder / METRICS)
        self._events = JsonlFile(folder / EVENTS)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        numbers = {name: _number(value) for name, value in metrics.items()}
        self._metrics.append({"step": step, "time": time.time(), **numbers})

    def span(self, name: str, *, step: int, **facts: Any) -> AbstractContextManager[None]:
        return timed(name, step, facts, lambda event: self._events.append(self._redact.value(event.record())))

    def note(
        self, name: str, *, step: int, start: float, seconds: float, who: str, error: str | None = None, **facts: Any
    ) -> None:
        """Write an event of somebody whom no task here stands for, such as an engine."""
        event = Event(name, step, start, start + seconds, who, error is None, error, facts)
        self._events.append(self._redact.value(event.record()))

    def rewind(self, step: int) -> None:
        """Drop the metrics of later steps, because a resumed run writes them again. Events are history and stay."""
        self._metrics.keep(lambda record: record["step"] <= step)


class JsonlFile:
    """A file of JSON objects, one per line, that several threads may append to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()

    def append(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, default=str).encode() + b"\n"
        try:
            with self._lock, self._path.open("a+b") as file:
                _drop_torn_line(file)
                file.write(line)
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Rewrite the file with only the wanted records. At any moment it is either the old file or the new one."""
        if not self._path.exists():
            return
        beside = self._path.with_suffix(".tmp")
        with self._lock:
            lines = [json.dumps(record) + "\n" for record in read_jsonl(self._path) if wanted(record)]
            try:
                with beside.open("w") as file:
                    file.writelines(lines)
                    file.flush()
                    os.fsync(file.fileno())
                beside.replace(self._path)
            except OSError as error:
                raise _cannot_write(self._path, error) from error


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a file that may still grow. A missing file has none; an incomplete last line is left out."""
    if not path.exists():
        return []
    *lines, _torn = path.read_bytes().split(b"\n")
    return [_parse(path, number, line) for number, line in enumerate(lines, start=1)]


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise _damaged(path, number) from error
    if not isinstance(record, dict):
        raise _damaged(path, number)
    return record


def _drop_torn_line(file: BinaryIO) -> None:
    """Cut the file after its last newline."""
    end = size = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _CHUNK) if end < size else end - 1  # most files are complete: one byte is enough
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        file.truncate(end)


def _number(value: float) -> float | None:
    """The number, or None for NaN and infinity, which JSON does not have."""
    number = float(value)
    return number if math.isfinite(number) else None


def _damaged(path: Path, number: int) -> RunError:
    return RunError(
        f"{path}, line {number} is not a JSON object",
        remedy="remove that line; the rollouts and checkpoints of the run do not depend on it",
    )


def _cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path} cannot be written: {error}",
        remedy="free some disk space and check the folder's permissions; then run the same command again",
    )
