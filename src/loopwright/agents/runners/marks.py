"""Finds everything that a program started, by a mark in its environment, and ends it (Linux).

A mark names the run, the process that owns the program, and the trial. Whatever carries the mark of a trial belongs to
that trial; and whatever carries the mark of a run whose owner is dead was left behind by a killed run. A program may
itself start a run, whose programs then belong to both trials: their marks are joined.

`serve/marked_processes.py` finds the processes, and says which ones it cannot find; a sandbox ends those too.

On other systems there is no /proc: there only the process group is ended.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loopwright.serve.marked_processes import (
    JOINT,
    PROC,
    Process,
    ProcessTable,
    kill_all,
    mark_of,
    pids,
    started_at,
)

VARIABLE = "LOOPWRIGHT_TRIAL"
SWEEPS = 10
"""What is killed may have started something else meanwhile."""
SWEEP_PAUSE_SECONDS = 0.05


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
        return cls(run, os.getpid(), started_at(os.getpid()) or "0")

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
        return run == self.run and pid.isdecimal() and started_at(int(pid)) != started


def kill_at_once(mark: str) -> None:
    """Kill each process that carries the mark as soon as it is seen. One that starts another and ends, again and again,
    is gone before a whole look is over."""
    for pid in pids():
        if mark in (mark_of(pid, VARIABLE) or ""):
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
    outer = mark_of(os.getpid(), VARIABLE)
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
