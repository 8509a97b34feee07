"""Reads the lines that are appended to a file, each once, and notices when the file is another one.

A file that was replaced, cut or written anew (a run that resumes rewrites its metrics) is read again from its
beginning. An incomplete last line is left for the next time. The file may hold anything: a line that is too long is
skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

PIECE = 8 << 20
"""How much is read at once. A longer line is skipped, so that no file fills the memory."""
COMPARED = 64
"""How many of the bytes that were read last have to be there still. The inode alone does not name a file: a new one may
get that of a file that was deleted."""


class AppendedLines:
    """The lines of one file. `again` is called before the file is read from its beginning. Not for several threads at
    once."""

    def __init__(self, path: Path, again: Callable[[], None]) -> None:
        self._path = path
        self._again = again
        self._file: tuple[int, int] | None = None
        self._cuts = 0
        self._skips = False
        self._seen = b""
        self.offset = 0
        """Behind the last line that was read."""

    @property
    def edition(self) -> str:
        """Names what was read; empty without a file."""
        return "" if self._file is None else "-".join(f"{part:x}" for part in (*self._file, self._cuts))

    def read(self) -> Iterator[tuple[int, bytes]]:
        """What was appended since the last call, each line with its place in the file."""
        try:
            with self._path.open("rb") as file:
                self._begin(file)
                yield from self._lines(file)
        except FileNotFoundError:
            if self._file is not None:
                self._file = None
                self._restart()

    def _begin(self, file: BinaryIO) -> None:
        found = os.fstat(file.fileno())
        if self._file != (found.st_dev, found.st_ino):
            self._file, self._cuts = (found.st_dev, found.st_ino), 0
            self._restart()
            return
        file.seek(self.offset - len(self._seen))
        if found.st_size < self.offset or file.read(len(self._seen)) != self._seen:
            self._cuts += 1
            self._restart()

    def _restart(self) -> None:
        self.offset, self._seen, self._skips = 0, b"", False
        self._again()

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        file.seek(self.offset)
        while piece := file.read(PIECE):
            end = piece.rfind(b"\n") + 1
            if not end and len(piece) < PIECE:
                return
            begin, start = self.offset, 0
            skipped, self._skips = self._skips, not end
            end = end or len(piece)
            self.offset += end
            self._seen = piece[max(0, end - COMPARED) : end]
            while start < end and not self._skips:
                stop = piece.index(b"\n", start)
                if not skipped:
                    yield begin + start, piece[start:stop]
                skipped, start = False, stop + 1
            file.seek(self.offset)
