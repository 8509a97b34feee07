"""Whether a run is running, and what it does, from its `status.json` and its lock. Nobody is asked for it.

The file tells what was so when it was written. The lock tells what is so now: if it is free, no process uses the run,
whatever the file says. If it is held and the file is old, the process is alive and silent. A file that another process
has written says nothing of the one that holds the lock now.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from loopwright.runs.lock_holder import lock_holder
from loopwright.runs.run_folder import RunFolder

FORMAT = 1
WRITTEN_EVERY_SECONDS = 2.0
OLD_SECONDS = 30.0
"""A status that is older says nothing about the present."""
LAST_TIME = 1e11
MOST_BYTES = 4 << 20


class RunState(StrEnum):
    """Whether a process works on the run."""

    RUNNING = "running"
    SILENT = "silent"
    """A process uses the folder and has told nothing for a while: it starts, it stands still, or its version tells
    nothing."""
    NOT_RUNNING = "not running"


@dataclass(frozen=True, slots=True)
class StatusNow:
    """`told` is the last status of the run, also of one that does not run any more; empty if there is none. `pid` is
    the process that uses the folder. `age` is in seconds; None if that process has told nothing yet."""

    state: RunState
    pid: int | None = None
    age: float | None = None
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def present(self) -> dict[str, Any]:
        """What is told of the present: nothing, unless the run is running."""
        return self.told if self.state is RunState.RUNNING else {}


def read_status(folder: RunFolder, now: float | None = None) -> StatusNow:
    """The status of the run in `folder`."""
    pid, told = lock_holder(folder.lock), _told(folder)
    at = told.get("at")
    age = None
    if isinstance(at, int | float) and 0 <= at < LAST_TIME:
        age = max(0.0, (time.time() if now is None else now) - at)
    if pid is None:
        return StatusNow(RunState.NOT_RUNNING, None, age, told)
    if told.get("pid") not in (None, pid):
        return StatusNow(RunState.SILENT, pid, None, told)
    is_fresh = age is not None and age < OLD_SECONDS
    return StatusNow(RunState.RUNNING if is_fresh else RunState.SILENT, pid, age, told)


def _told(folder: RunFolder) -> dict[str, Any]:
    """What the file says. A file that is missing or of another format says nothing."""
    try:
        with folder.status.open("rb") as file:
            said = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) and said.get("format") == FORMAT else {}
