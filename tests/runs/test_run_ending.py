"""How the process of a run ended is in its folder, unless it was killed."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from loopwright.build.ending import told_ending
from loopwright.core.redaction import Redactor
from loopwright.errors import BudgetError
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.run_status import RunState, read_status

SECRET = "sk-a-secret-of-the-judge"


def end_with(folder: RunFolder, error: BaseException | None) -> None:
    def work() -> None:
        with told_ending(folder, Redactor((SECRET,))):
            if error is not None:
                raise error

    if error is None:
        work()
        return
    with pytest.raises(type(error)):
        work()


def tell(folder: RunFolder, step: int, pid: int | None = None) -> None:
    told = {"format": 1, "at": time.time(), "step": step, "steps": 5, "pid": pid or os.getpid()}
    folder.status.write_text(json.dumps(told))


FAILED = BudgetError(f"16 groups in a row failed (64 x judge KeyError {SECRET})", remedy="mend the judge")


@pytest.mark.parametrize(
    ("error", "step", "how"),
    [
        (None, 5, "finished"),
        (None, 3, "stopped"),
        (asyncio.CancelledError(), 3, "stopped"),
        (KeyboardInterrupt(), 3, "stopped"),
        (FAILED, 3, "error"),
        (ExceptionGroup("several", [FAILED]), 5, "error"),
        (ValueError(f"no {SECRET}"), 3, "error"),
    ],
    ids=["finished", "stopped", "cancelled", "interrupted", "error", "group", "of the caller"],
)
def test_the_last_word_says_how_it_ended(
    made_up_run: RunFolder, error: BaseException | None, step: int, how: str
) -> None:
    tell(made_up_run, step)
    assert read_status(made_up_run).ended is None, "it was killed"
    end_with(made_up_run, error)
    now = read_status(made_up_run)
    assert now.ended is not None
    assert (now.state, now.ended.how, now.told["step"]) == (RunState.NOT_RUNNING, how, step)
    assert (now.ended.error is not None) is (how == "error")
    assert SECRET not in made_up_run.status.read_text()
    if error is FAILED:
        assert str(now.ended.error).startswith("16 groups in a row failed (64 x judge KeyError")


def test_a_process_that_could_not_open_the_run_does_not_speak_for_the_one_before(
    made_up_run: RunFolder,
) -> None:
    tell(made_up_run, 5, pid=1)
    end_with(made_up_run, FAILED)
    now = read_status(made_up_run)
    assert now.ended is not None
    assert (now.ended.how, "step" in now.told) == ("error", False)


def test_nothing_has_ended_while_the_next_process_works(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run", {}) as folder:
        tell(folder, 3)
        assert read_status(folder).state is RunState.RUNNING
        end_with(folder, FAILED)
        now = read_status(folder)
        assert (now.state, now.ended, now.age) == (RunState.SILENT, None, None), "the same process opens it again"


@pytest.mark.parametrize("said", [7, {}, {"how": "odd", "at": 1}, {"how": [], "at": 1}, {"how": "error", "at": "x"}])
def test_an_odd_ending_tells_nothing(made_up_run: RunFolder, said: object) -> None:
    made_up_run.status.write_text(json.dumps({"format": 1, "at": 1.0, "ended": said}))
    assert read_status(made_up_run).ended is None
