"""Logs each call before the engine is asked, in a file beside the store, so that a crash does not hide it.

The invariant: a call that is in the log, that has no turn in the database, and of which the log says no end, was cut
off by the death of the gateway. An answered call needs no second line: its turn tells that it was answered, and is
written in one transaction. A line is one write into the system's memory, so it survives the death of the process as a
commit of SQLite does, and takes a tenth of the time.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from loopwright.errors import RunError

log = logging.getLogger("loopwright")

LONGEST_BYTES = 4 << 20
"""When the log is longer, the calls that have ended are removed from it."""


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A call of a session that was going to be asked. `id` is the id of its answer. `draws` is how many samples the
    session had requested by then, with the `samples` of this call."""

    session: str
    id: str
    asked: float
    prompt_tokens: int
    samples: int
    draws: int


class CallLog:
    """The log of one store. It is open from the start, and must be closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._out: dict[str, bytes] = {}
        self._file = -1
        self._is_torn = False
        self._start()

    def ask(self, session: str, id: str, prompt_tokens: int, samples: int, draws: int) -> None:
        """When this has returned, the call is in the log."""
        line = orjson.dumps((session, id, time.time(), prompt_tokens, samples, draws), option=orjson.OPT_APPEND_NEWLINE)
        self._write(line)
        self._out[id] = line

    def answered(self, id: str) -> None:
        """The turns of the call are stored. Nothing needs to be written."""
        self._out.pop(id, None)
        if self._bytes > self._most:
            self._start_later_if_refused()

    def ended(self, id: str) -> None:
        """The call has ended without a turn."""
        if self._out.pop(id, None) is not None:
            self._write(orjson.dumps((id,), option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        os.close(self._file)

    def _start(self) -> None:
        """Begin a new file, with the calls that are out. It replaces the old one when it is complete."""
        new, lines = self._path.with_name(f"{self._path.name}.new"), b"".join(self._out.values())
        opened = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            if os.write(opened, lines) < len(lines):
                raise OSError(errno.ENOSPC, "the calls that are out were not written whole")
            new.replace(self._path)
        except BaseException:
            os.close(opened)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self._bytes, self._most = opened, len(lines), LONGEST_BYTES + len(lines)
        self._is_torn = False

    def _start_later_if_refused(self) -> None:
        """Begin a new file. If that is not possible now (no space, too many open files), the old one goes on: it is
        complete, and the turns of the call are stored, so the call must not fail any more."""
        try:
            self._start()
        except OSError as error:
            log.warning("%s cannot be shortened: %s", self._path, error)
            self._most = self._bytes + LONGEST_BYTES

    def _write(self, line: bytes) -> None:
        # After a line that was not written whole, a new line begins: it would be unreadable too.
        text = b"\n" + line if self._is_torn else line
        try:
            written = os.write(self._file, text)
        except OSError as error:
            raise _unusable(str(error)) from error
        self._bytes += written
        self._is_torn = written < len(text)
        if self._is_torn:
            raise _unusable("a line was not written whole")


def calls_without_end(path: Path) -> Sequence[LoggedCall]:
    """The calls of an earlier gateway that were answered, or were cut off by its death. A last line that is not whole
    belongs to a call that was never made."""
    calls: dict[str, LoggedCall] = {}
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        try:
            said = orjson.loads(line)
        except orjson.JSONDecodeError:  # the disk was full: that call was refused
            continue
        if len(said) == 1:
            calls.pop(said[0], None)
        else:
            calls[said[1]] = LoggedCall(*said)
    return list(calls.values())


def _unusable(why: str) -> RunError:
    return RunError(
        f"the log of calls cannot be written: {why}", remedy="see to the disk's space and the file's permissions"
    )
