"""Where the events of each step are in `events.jsonl`. Only places are kept in memory, so a long run costs little.

Events are never removed, so a step that was repeated has several of each.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from loopwright.runs.appended_lines import AppendedLines


class EventIndex:
    """The index of one file. Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = AppendedLines(path, self._clear)
        self._clear()

    def _clear(self) -> None:
        self._places: dict[int, array[int]] = {}
        self._lost: list[dict[str, Any]] = []

    @property
    def rows(self) -> int:
        return self._lines.offset

    @property
    def steps(self) -> list[int]:
        return sorted(self._places)

    @property
    def of_engines(self) -> list[dict[str, Any]]:
        """What happened to engines: one was lost, or came back."""
        return self._lost

    def refresh(self) -> None:
        """Read what was appended since the last call."""
        for start, line in self._lines.read():
            record = _parsed(line)
            if record is not None:
                self._places.setdefault(record["step"], array("q")).extend((start, len(line)))
                if str(record["name"]).startswith("engine"):
                    self._lost.append(record)

    def of(self, steps: Iterable[int]) -> list[dict[str, Any]]:
        """The events of these steps, in the order of their start."""
        found = []
        try:
            with self._path.open("rb") as file:
                for step in steps:
                    places = self._places.get(step, array("q"))
                    for offset, length in zip(places[::2], places[1::2], strict=True):
                        file.seek(offset)
                        record = _parsed(file.read(length))
                        if record is not None:
                            found.append(record)
        except FileNotFoundError:
            return []
        return sorted(found, key=lambda event: event["start"])


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The event; None if the line is none, or an odd one."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int) or "name" not in record:
        return None
    is_timed = all(isinstance(record.get(name), int | float) for name in ("start", "end"))
    is_told = isinstance(record.get("facts"), dict | None)
    return record if is_timed and is_told and math.isfinite(record["start"]) and math.isfinite(record["end"]) else None
