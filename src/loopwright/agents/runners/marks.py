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
SWEEPS = 10
"""What is killed may have started something else meanwhile."""
SWEEP_PAUSE_SECONDS = 0.05
_ASSIGNED = f"{VARIABLE}=".encode()


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
    """Reads /proc. A process that was seen with a mark keeps it, whatever it does with its environment. Several threads
    may ask at the same time."""

    def __init__(self) -> None:
        self._marks: dict[tuple[int, str], str] = {}
        # An older look that ends later would forget what a newer one has seen.
        self._one_look = threading.Lock()

    def marked(self) -> list[Process]:
        """All living processes of this user that carry a mark, and their children and sessions without one."""
        with self._one_look:
            return self._look()

    def _look(self) -> list[Process]:
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
        return [Process(pid, mark, living[pid].pages * PAGE) for pid, mark in marks.items()]

    def of(self, mark: str) -> list[Process]:
        return [process for process in self.marked() if mark in process.marks]


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
    try:
        text = (PROC / str(pid) / "stat").read_text("ascii", "replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name of the program, in parentheses, may hold anything.
    fields = text.rpartition(")")[2].split()
    return _Status(fields[0], int(fields[1]), int(fields[3]), fields[19], int(fields[21]))


def _started(pid: int) -> str | None:
    status = _status(pid)
    return None if status is None else status.started


def _mark_of(pid: int) -> str | None:
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    for variable in environment.split(b"\0"):
        if variable.startswith(_ASSIGNED):
            return variable[len(_ASSIGNED) :].decode("ascii", "replace")
    return None
