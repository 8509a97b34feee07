"""Where the events of each step are in `events.jsonl`. Only places are kept in memory, so a long run costs little.

Events are never removed, so a step that was repeated has several of each.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

MOST_BYTES = 8 << 20


class EventIndex:
    """The index of one file. Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._clear()

    def _clear(self) -> None:
        self._offset = 0
        self._torn = b""
        self._places: dict[int, array[int]] = {}
        self._lost: list[dict[str, Any]] = []

    @property
    def rows(self) -> int:
        return self._offset

    @property
    def steps(self) -> list[int]:
        return sorted(self._places)

    @property
    def of_engines(self) -> list[dict[str, Any]]:
        """What happened to engines: one was lost, or came back."""
        return self._lost

    def refresh(self) -> None:
        """Read what was appended since the last call."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if self._file != (found.st_dev, found.st_ino) or found.st_size < self._offset:
                    self._file = (found.st_dev, found.st_ino)
                    self._clear()
                file.seek(self._offset)
                while piece := file.read(MOST_BYTES):
                    self._take(piece)
        except FileNotFoundError:
            self._file = None
            self._clear()

    def _take(self, piece: bytes) -> None:
        start = self._offset - len(self._torn)
        self._offset += len(piece)
        *lines, self._torn = (self._torn + piece).split(b"\n")
        for line in lines:
            record = _parsed(line)
            if record is not None:
                self._places.setdefault(record["step"], array("q")).extend((start, len(line)))
                if str(record.get("name", "")).startswith("engine"):
                    self._lost.append(record)
            start += len(line) + 1

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
    try:
        record = orjson.loads(line)
    except json.JSONDecodeError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        return None
    return record if {"name", "start", "end"} <= record.keys() else None
