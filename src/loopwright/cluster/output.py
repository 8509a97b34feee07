"""Reads what a process writes to its output files, line by line, as it grows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

OUTPUT_BYTES = 65_536
"""How much is read at a time."""
LAST_BYTES = 1 << 20
"""How much of what a dead process wrote is read at most, from the end. A longer line is read in pieces."""
MARKS = re.compile(rb"^:(?:job_id|actor_name|task_name):[^\n]*(?:\n|\Z)", re.MULTILINE)
"""Lines by which Ray's own reader knows whose output follows."""


class OutputFiles:
    """Files that grow. `positions` says how far each was read before."""

    def __init__(self, files: Iterable[str], positions: Iterable[int] = ()) -> None:
        self._positions = dict.fromkeys(files, 0)
        self._positions.update(zip(self._positions, positions, strict=False))

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(self._positions)

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(self._positions.values())

    def new(self) -> bytes:
        """The whole lines that came since the last time, or the first of them if they are many."""
        return b"".join(self._new(file) for file in self._positions)

    def rest(self) -> bytes:
        """Everything that is left, also a line without its end. Of very much, the end."""
        return b"".join(self._rest(file) for file in self._positions)

    def _new(self, file: str) -> bytes:
        new = _read(file, self._positions[file], OUTPUT_BYTES)
        if b"\n" not in new and len(new) == OUTPUT_BYTES:
            # Whoever removes secrets must see a line as a whole.
            new = _read(file, self._positions[file], LAST_BYTES)
        if b"\n" in new or len(new) < LAST_BYTES:
            new = new[: new.rfind(b"\n") + 1]
        self._positions[file] += len(new)
        return MARKS.sub(b"", new)

    def _rest(self, file: str) -> bytes:
        try:
            size = os.stat(file).st_size
        except OSError:
            return b""
        left = _read(file, max(self._positions[file], size - LAST_BYTES), LAST_BYTES)
        self._positions[file] = size
        left = MARKS.sub(b"", left)
        return left if not left or left.endswith(b"\n") else left + b"\n"


def output_of_this_process() -> OutputFiles:
    """The files behind stdout and stderr, from their beginnings."""
    links = (os.readlink(f"/proc/self/fd/{number}") for number in (1, 2))
    return OutputFiles(link for link in links if os.path.isfile(link))


def _read(file: str, position: int, size: int) -> bytes:
    try:
        with open(file, "rb") as opened:
            opened.seek(position)
            return opened.read(size)
    except OSError:
        return b""
