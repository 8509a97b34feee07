"""Whether a run is running, and what it does, from its `status.json` and its lock. Nobody is asked for it.

The file tells what was so when it was written. The lock tells what is so now: if it is free, no process uses the run,
whatever the file says. If it is held and the file is old, the process is alive and silent. A file that another process
has written says nothing of the one that holds the lock now.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from loopwright.runs.durable import draft_of
from loopwright.runs.lock_holder import lock_holder
from loopwright.runs.run_folder import RunFolder

log = logging.getLogger("loopwright")

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


class EndedHow(StrEnum):
    """How the last process of a run ended."""

    FINISHED = "finished"
    """The last step was trained."""
    STOPPED = "stopped"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How the last process of a run ended, and when. `error` is what an error said, without secrets."""

    how: EndedHow
    error: str | None
    at: float

    def as_json(self) -> dict[str, Any]:
        return {"how": self.how.value, "error": self.error, "at": self.at}


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

    @property
    def ended(self) -> RunEnd | None:
        """None while a process uses the run, and if the last one was killed or is of an earlier version."""
        said = self.told.get("ended")
        if self.state is not RunState.NOT_RUNNING or not isinstance(said, dict):
            return None
        how, error, at = said.get("how"), said.get("error"), said.get("at")
        if how not in tuple(EndedHow) or not isinstance(at, int | float) or not 0 <= at < LAST_TIME:
            return None
        return RunEnd(EndedHow(how), None if error is None else str(error), float(at))


def read_status(folder: RunFolder, now: float | None = None) -> StatusNow:
    """The status of the run in `folder`."""
    pid, told = lock_holder(folder.lock), last_told(folder)
    at = told.get("at")
    age = None
    if isinstance(at, int | float) and 0 <= at < LAST_TIME:
        age = max(0.0, (time.time() if now is None else now) - at)
    if pid is None:
        return StatusNow(RunState.NOT_RUNNING, None, age, told)
    if told.get("pid") not in (None, pid) or "ended" in told:
        return StatusNow(RunState.SILENT, pid, None, told)
    is_fresh = age is not None and age < OLD_SECONDS
    return StatusNow(RunState.RUNNING if is_fresh else RunState.SILENT, pid, age, told)


def last_told(folder: RunFolder) -> dict[str, Any]:
    """What the file says, whoever wrote it. A file that is missing or of another format says nothing."""
    try:
        with folder.status.open("rb") as file:
            said = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) and said.get("format") == FORMAT else {}


def write_status(folder: RunFolder, told: Mapping[str, Any]) -> None:
    """Replace the file. It is not flushed to disk: after a power cut nobody asks what the run was doing."""
    draft = draft_of(folder.status)
    try:
        draft.write_text(json.dumps(told, default=str), encoding="utf-8")
        draft.replace(folder.status)
    except OSError as error:
        log.debug("%s cannot be written: %s", folder.status, error)
