"""Finds everything that a program started, by a mark in its environment, and ends it (Linux).

A mark names the run, the process that owns the program, and the trial. Processes inherit it, also those that leave
their process group. So whatever carries the mark of a trial belongs to that trial; and whatever carries the mark of a
run whose owner is dead was left behind by a killed run.

On other systems there is no /proc: there only the process group is ended.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "LOOPWRIGHT_TRIAL"
PROC = Path("/proc")
PAGE = os.sysconf("SC_PAGE_SIZE")
CHUNK = 1 << 16
_ASSIGNED = f"\0{VARIABLE}=".encode()


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that starts programs for a run. A process number may be used again, so its start time is part of
    it."""

    run: str
    pid: int
    started: str

    @classmethod
    def here(cls, run_folder: Path) -> Owner:
        """This process, for the run in this folder."""
        run = hashlib.blake2b(str(run_folder.resolve()).encode(), digest_size=6).hexdigest()
        return cls(run, os.getpid(), _started(os.getpid()) or "0")

    @property
    def name(self) -> str:
        return f"{self.run}-{self.pid}-{self.started}"

    def new_trial(self) -> str:
        """A mark that no other trial has."""
        return f"{self.name}-{secrets.token_hex(6)}"

    def left_behind(self, mark: str) -> bool:
        """Whether `mark` is of an earlier, dead process of the same run."""
        run, _, rest = mark.partition("-")
        pid, _, rest = rest.partition("-")
        started = rest.partition("-")[0]
        return run == self.run and pid.isdecimal() and _started(int(pid)) != started


@dataclass(frozen=True, slots=True)
class Process:
    """A process that carries a mark."""

    pid: int
    mark: str
    memory: int
    """Bytes that are in memory now."""


class ProcessTable:
    """Reads /proc, in any thread. A process that was seen with a mark keeps it, whatever it does with its environment.

    A look reads files of every process of the machine. So threads that ask at the same time share the next look, and
    none gets a look that began before it asked.
    """

    def __init__(self) -> None:
        self._marks: dict[tuple[int, str], str] = {}
        self._looking = threading.Lock()
        self._looks = 0
        self._seen: tuple[Process, ...] = ()

    def marked(self) -> tuple[Process, ...]:
        """All living processes of this user that carry a mark, and their children and sessions without one."""
        begun_before = self._looks
        with self._looking:
            if self._looks == begun_before:
                self._looks += 1
                self._seen = self._look()
            return self._seen

    def of(self, mark: str) -> list[Process]:
        return [process for process in self.marked() if process.mark == mark]

    def _look(self) -> tuple[Process, ...]:
        living = {pid: status for pid in _pids() if (status := _status(pid)) is not None and status.state not in "ZX"}
        marks = {
            pid: mark
            for pid, status in living.items()
            if (mark := self._marks.get((pid, status.started)) or _mark_of(pid)) is not None
        }
        sessions = {living[pid].session: mark for pid, mark in marks.items() if pid == living[pid].session}
        # A process without its mark belongs to the trial of its parent or session. Parents have lower numbers as a
        # rule; where they do not, the next look finds the child.
        for pid, status in sorted(living.items()):
            if pid not in marks and (mark := marks.get(status.parent) or sessions.get(status.session)) is not None:
                marks[pid] = mark
        self._marks = {(pid, living[pid].started): mark for pid, mark in marks.items()}
        return tuple(Process(pid, mark, living[pid].pages * PAGE) for pid, mark in marks.items())


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_left_behind(owner: Owner, table: ProcessTable) -> int:
    """End what killed processes of the same run have left behind, and return how many processes that were."""
    orphans = [process.pid for process in table.marked() if owner.left_behind(process.mark)]
    kill_all(orphans)
    return len(orphans)


@dataclass(frozen=True, slots=True)
class _Status:
    state: str
    parent: int
    session: int
    started: str
    pages: int


def _pids() -> Iterator[int]:
    with suppress(FileNotFoundError), os.scandir(PROC) as entries:
        yield from (int(entry.name) for entry in entries if entry.name.isdecimal())


def _status(pid: int) -> _Status | None:
    text = _read(pid, "stat")
    if not text:
        return None
    # The name of the program, in parentheses, may hold anything.
    fields = text.rpartition(b")")[2].decode("ascii").split(None, 22)
    return _Status(fields[0], int(fields[1]), int(fields[3]), fields[19], int(fields[21]))


def _started(pid: int) -> str | None:
    status = _status(pid)
    return None if status is None else status.started


def _mark_of(pid: int) -> str | None:
    _, assigned, rest = (b"\0" + _read(pid, "environ")).partition(_ASSIGNED)
    return rest.partition(b"\0")[0].decode("ascii", "replace") if assigned else None


def _read(pid: int, name: str) -> bytes:
    """A file of a process; empty if the process is gone or somebody else's. pathlib would take twice as long."""
    try:
        descriptor = os.open(f"{PROC}/{pid}/{name}", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return b"".join(iter(lambda: os.read(descriptor, CHUNK), b""))
    except OSError:
        return b""
    finally:
        os.close(descriptor)
