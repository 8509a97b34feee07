"""Whether a run runs is told by its lock; the file tells what it did when it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loopwright.runs.first_screen import first_screen, pace
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.run_status import OLD_SECONDS, RunState, read_status


@pytest.fixture
def held(made_up_run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run whose folder process 42 uses."""
    monkeypatch.setattr("loopwright.runs.run_status.lock_holder", lambda lock: 42)
    return made_up_run


def write(folder: RunFolder, told: Any) -> None:
    folder.status.write_text(told if isinstance(told, str) else json.dumps(told))


def test_a_fresh_status_of_a_live_process_is_the_present(held: RunFolder) -> None:
    write(held, {"format": 1, "at": 1000.0, "step": 3})
    now = read_status(held, now=1002.0)
    assert (now.state, now.pid, now.age, now.present["step"]) == (RunState.RUNNING, 42, 2.0, 3)


def test_an_old_status_tells_nothing_of_the_present(held: RunFolder) -> None:
    write(held, {"format": 1, "at": 1000.0, "step": 3})
    now = read_status(held, now=1000.0 + OLD_SECONDS)
    assert (now.state, now.present, now.told["step"]) == (RunState.SILENT, {}, 3)


def test_what_a_dead_process_told_is_not_the_present_of_the_next_one(held: RunFolder) -> None:
    """After a kill and a resume, the file is that of the dead process until the new one has opened the run."""
    write(held, {"format": 1, "at": 1000.0, "step": 3, "pid": 41})
    now = read_status(held, now=1002.0)
    assert (now.state, now.pid, now.age, now.present) == (RunState.SILENT, 42, None, {})
    write(held, {"format": 1, "at": 1000.0, "step": 3, "pid": 42})
    assert read_status(held, now=1002.0).state is RunState.RUNNING


def test_a_free_lock_says_that_nobody_runs_whatever_the_file_says(made_up_run: RunFolder) -> None:
    write(made_up_run, {"format": 1, "at": 1000.0, "step": 3})
    now = read_status(made_up_run, now=1000.0)
    assert (now.state, now.present) == (RunState.NOT_RUNNING, {})


@pytest.mark.parametrize("said", ["", "{", "[1]", '{"format": 99}', '{"format": 1, "at": "soon"}', "\udcff"])
def test_a_file_that_cannot_be_read_tells_nothing(held: RunFolder, said: str) -> None:
    held.status.write_text(said, errors="surrogateescape")
    assert read_status(held).present == {}
    assert first_screen(held).step == 3


def test_a_run_without_a_status_has_a_first_screen(made_up_run: RunFolder) -> None:
    screen = first_screen(made_up_run)
    assert (screen.step, screen.steps, screen.status.state) == (3, None, RunState.NOT_RUNNING)
    assert screen.rewards == ((1, 0.0), (2, 0.5), (3, 1.0))
    assert screen.evaluations["heldout/greedy"] == ((0, 0.5), (3, 1.0))
    assert screen.conservation == {"train": {"consumed": 6}}
    assert screen.as_json()["finished"] is False


def test_the_time_of_a_step_is_what_passes_between_steps(made_up_run: RunFolder) -> None:
    """Most steps take 0.1 s, and some wait for 10 s, which is no part of their phases."""
    lines, at = list[str](), 1000.0
    for step in range(1, 42):
        at += 10.1 if step % 4 == 0 else 0.1
        lines.append(json.dumps({"step": step, "time": at, "reward/mean": 1.0, "time/train": 0.1}))
        lines.append(json.dumps({"step": step, "time": at + 0.05, "eval/heldout/reward": 1.0}))
    made_up_run.metrics.write_text("\n".join(lines) + "\n")
    assert first_screen(made_up_run).seconds_per_step == pytest.approx((5 * 10.1 + 15 * 0.1) / 20)


@pytest.mark.parametrize(
    ("times", "opened", "expected"),
    [
        ([], 0.0, None),
        ([5.0], 0.0, None),
        ([5.0, 5.0], 0.0, None),
        ([0.0, 10.0, 20.0, 40_000.0, 40_010.0], 0.0, 10.0),
        ([0.0, 10.0, 20.0, 300.0, 310.0], 290.0, 10.0),
        ([0.0, 300.0], 290.0, None),
    ],
    ids=["no step", "one", "no time", "a night", "a resume", "only a resume"],
)
def test_a_pause_is_no_step(times: list[float], opened: float, expected: float | None) -> None:
    assert pace(times, opened) == expected


def test_a_run_that_has_stored_nothing_yet_has_one_too(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run", {"trainer": {"steps": 5}}) as folder:
        screen = first_screen(folder)
    assert (screen.step, screen.steps, screen.seconds_per_step, dict(screen.conservation)) == (0, 5, None, {})
