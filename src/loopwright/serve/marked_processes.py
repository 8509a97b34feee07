"""Finds processes by a mark in their environment (Linux).

Processes inherit the mark of who started them, also if they leave their process group. A process that clears its
environment, or writes its title over it, is known by its parent or session, or because it was seen with the mark
before. One that does so and also leaves both before anybody looks is not found.

On other systems there is no /proc, and nothing is found.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

JOINT = "/"
"""Between the marks of a process that belongs to several."""
PROC = Path("/proc")
PAGE = os.sysconf("SC_PAGE_SIZE")
CHUNK = 1 << 16
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What reading a process raises if it is gone or somebody else's. Other errors are ours: too many open files, say."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that carries a mark, or several that are joined."""

    pid: int
    mark: str
    memory: int
    """Bytes that are in memory now, also those that it shares with others."""
    started: str
    """When it started. A process number may be used again; both together are never."""

    @property
    def marks(self) -> list[str]:
        return self.mark.split(JOINT)


class ProcessTable:
    """Reads /proc, in any thread. A process that was seen with a mark keeps it, whatever it does with its environment.

    `variable` is where marks are. `known` has the marks of processes that were seen earlier, by number and start time.

    A look reads files of every process of the machine. So threads that ask at the same time share the next look, and
    none gets a look that began before it asked.
    """

    def __init__(self, variable: str, known: Mapping[tuple[int, str], str] | None = None) -> None:
        self._variable = variable
        self._marks = dict(known or {})
        self._looking = threading.Lock()
        self._looks = 0
        self._seen: tuple[Process, ...] = ()

    def marked(self) -> tuple[Process, ...]:
        """All living processes of this user that carry a mark, and their children and sessions without one."""
        begun_before = self._looks
        with self._looking:
            if self._looks == begun_before:
                self._looks += 1
                try:
                    self._seen = self._look()
                except BaseException:
                    # Whoever waits must look for itself.
                    self._looks -= 1
                    raise
            return self._seen

    def of(self, mark: str) -> list[Process]:
        return [process for process in self.marked() if mark in process.marks]

    def _look(self) -> tuple[Process, ...]:
        living = {pid: status for pid in pids() if (status := _status(pid)) is not None and status.state not in "ZX"}
        marks = {
            pid: mark
            for pid, status in living.items()
            if (mark := self._marks.get((pid, status.started)) or mark_of(pid, self._variable)) is not None
        }
        sessions = {living[pid].session: mark for pid, mark in marks.items() if pid == living[pid].session}
        # A process without a mark belongs to whom its parent or session belongs to.
        while found := {
            pid: mark
            for pid, status in living.items()
            if pid not in marks and (mark := marks.get(status.parent) or sessions.get(status.session)) is not None
        }:
            marks |= found
        self._marks = {(pid, living[pid].started): mark for pid, mark in marks.items()}
        return tuple(Process(pid, mark, living[pid].pages * PAGE, living[pid].started) for pid, mark in marks.items())


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _Status:
    state: str
    parent: int
    session: int
    started: str
    pages: int


def pids() -> Iterator[int]:
    """Of every process, also those of other users."""
    with suppress(FileNotFoundError), os.scandir(PROC) as entries:
        yield from (int(entry.name) for entry in entries if entry.name.isdecimal())


def _status(pid: int) -> _Status | None:
    text = read_proc(pid, "stat")
    if not text:
        return None
    # The name of the program, in parentheses, may hold anything.
    fields = text.rpartition(b")")[2].decode("ascii").split(None, 22)
    return _Status(fields[0], int(fields[1]), int(fields[3]), fields[19], int(fields[21]))


def started_at(pid: int) -> str | None:
    """When a process started, or None if there is none of this number."""
    status = _status(pid)
    return None if status is None else status.started


def mark_of(pid: int, variable: str) -> str | None:
    _, assigned, rest = (b"\0" + read_proc(pid, "environ")).partition(f"\0{variable}=".encode())
    return rest.partition(b"\0")[0].decode("ascii", "replace") if assigned else None


def read_proc(pid: int, name: str) -> bytes:
    """A file of a process; empty if the process is gone or somebody else's. pathlib would take twice as long."""
    try:
        descriptor = os.open(f"{PROC}/{pid}/{name}", os.O_RDONLY)
    except GONE:
        return b""
    try:
        return b"".join(iter(lambda: os.read(descriptor, CHUNK), b""))
    except GONE:
        return b""
    finally:
        os.close(descriptor)
