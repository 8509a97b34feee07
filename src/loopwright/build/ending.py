"""Says in the folder of a run how its process ended, for those who look at it later. A killed one says nothing."""

from __future__ import annotations

import os
import time
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from loopwright.core.redaction import Redactor
from loopwright.errors import LoopwrightError
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.run_status import FORMAT, EndedHow, last_told, write_status

STOPS = (CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)
MOST_ERROR_CHARACTERS = 2000


@dataclass(slots=True)
class RunEnding:
    """What is known of how the run will end. `failed` is the error of its latest work: a caller may close the run
    without handing it on."""

    failed: BaseException | None = None


@contextmanager
def told_ending(folder: RunFolder, redact: Redactor) -> Iterator[RunEnding]:
    """Add to the last status how the block ended. The lock of the folder must be held until then."""
    ending = RunEnding()
    try:
        yield ending
    except BaseException as error:
        ending.failed = error
        raise
    finally:
        failed = None if isinstance(ending.failed, STOPS) else ending.failed
        _tell(folder, None if failed is None else redact(_said(failed))[:MOST_ERROR_CHARACTERS])


def _tell(folder: RunFolder, error: str | None) -> None:
    told, now = last_told(folder), time.time()
    if told.get("pid") != os.getpid():
        # It failed before it told anything, so the file is that of an earlier process.
        told = {"format": FORMAT, "run": folder.path.name, "pid": os.getpid()}
    step, steps = told.get("step"), told.get("steps")
    is_done = isinstance(step, int) and isinstance(steps, int) and step >= steps
    how = EndedHow.ERROR if error is not None else EndedHow.FINISHED if is_done else EndedHow.STOPPED
    write_status(folder, {**told, "at": now, "ended": {"how": how.value, "error": error, "at": now}})


def _said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.message if isinstance(error, LoopwrightError) else f"{type(error).__name__}: {error}"
