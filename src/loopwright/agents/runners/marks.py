"""Finds everything that a program started, by a mark in its environment, and ends it (Linux).

A mark names the run, the process that owns the program, and the trial. Processes inherit it, also those that leave
their process group. So whatever carries the mark of a trial belongs to that trial; and whatever carries the mark of a
run whose owner is dead was left behind by a killed run. A program may itself start a run, whose programs then belong to
both trials: their marks are joined.

A process that clears its environment is known by its parent or session. One that also leaves both before anybody looks
is not found; a sandbox ends that one too.

On other systems there is no /proc: there only the process group is ended.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "LOOPWRIGHT_TRIAL"
JOINT = "/"
PROC = Path("/proc")
PAGE = os.sysconf("SC_PAGE_SIZE")
CHUNK = 1 << 16
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What reading a process raises if it is gone or somebody else's. Other errors are ours: too many open files, say."""
SWEEPS = 10
"""What is killed may have started something else meanwhile."""
SWEEP_PAUSE_SECONDS = 0.05
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
    """A process that carries a mark, or several that are joined."""

    pid: int
    mark: str
    memory: int
    """Bytes that are in memory now, also those that it shares with others."""

    @property
    def marks(self) -> list[str]:
        return self.mark.split(JOINT)


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
        living = {pid: status for pid in _pids() if (status := _status(pid)) is not None and status.state not in "ZX"}
        marks = {
            pid: mark
            for pid, status in living.items()
            if (mark := self._marks.get((pid, status.started)) or _mark_of(pid)) is not None
        }
        sessions = {living[pid].session: mark for pid, mark in marks.items() if pid == living[pid].session}
        # A process without its mark belongs to the trial of its parent or session.
        while found := {
            pid: mark
            for pid, status in living.items()
            if pid not in marks and (mark := marks.get(status.parent) or sessions.get(status.session)) is not None
        }:
            marks |= found
        self._marks = {(pid, living[pid].started): mark for pid, mark in marks.items()}
        return tuple(Process(pid, mark, living[pid].pages * PAGE) for pid, mark in marks.items())


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_at_once(mark: str) -> None:
    """Kill each process that carries the mark as soon as it is seen. One that starts another and ends, again and again,
    is gone before a whole look is over."""
    for pid in _pids():
        if mark in (_mark_of(pid) or ""):
            kill_all([pid])


def own_memory(process: Process) -> int:
    """Bytes that are in memory now. What several processes share is divided among them."""
    with suppress(OSError):
        for line in (PROC / str(process.pid) / "smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return process.memory


def nested_mark(mark: str) -> str:
    """The mark, after the one that this process carries itself, if it was started by a program of another run."""
    outer = _mark_of(os.getpid())
    return mark if outer is None else f"{outer}{JOINT}{mark}"


def kill_left_behind(owner: Owner, table: ProcessTable) -> int:
    """End what killed processes of the same run have left behind, and return how many processes that were."""
    killed = set[int]()
    for _ in range(SWEEPS):
        orphans = {process.pid for process in table.marked() if any(map(owner.left_behind, process.marks))}
        if not (orphans := orphans - {os.getpid()}):
            break
        kill_all(orphans)
        killed |= orphans
        time.sleep(SWEEP_PAUSE_SECONDS)
    return len(killed)


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
    except GONE:
        return b""
    try:
        return b"".join(iter(lambda: os.read(descriptor, CHUNK), b""))
    except GONE:
        return b""
    finally:
        os.close(descriptor)
