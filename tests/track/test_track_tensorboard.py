"""Event files as TensorBoard itself reads them: every scalar once, also after a resume."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from loopwright.errors import ConfigError, RunError
from loopwright.ports import Tracker
from loopwright.track.jsonl import JsonlTracker, read_jsonl
from loopwright.track.tensorboard import TensorboardTracker


def open_both(run: Path) -> tuple[JsonlTracker, TensorboardTracker]:
    return JsonlTracker(run), TensorboardTracker(run / "tensorboard", read_jsonl(run / "metrics.jsonl"))


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(run / "tensorboard"))
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_every_metric_is_a_scalar_with_its_step(tmp_path: Path) -> None:
    tracker: Tracker = open_both(tmp_path)[1]
    tracker.log(1, {"reward/mean": 0.5, "eval/held/greedy/reward": 0.25})
    tracker.log(2, {"reward/mean": 0.75})
    with tracker.span("train", step=2):
        pass
    assert scalars(tmp_path) == {"reward/mean": [(1, 0.5), (2, 0.75)], "eval/held/greedy/reward": [(1, 0.25)]}


def test_steps_that_are_done_again_are_there_once(tmp_path: Path) -> None:
    for tracker in open_both(tmp_path):
        for step in (1, 2, 3):
            tracker.log(step, {"x": step})
    for again in (30.0, 300.0, 3000.0):
        jsonl = JsonlTracker(tmp_path)
        jsonl.rewind(2)
        for tracker in (jsonl, open_both(tmp_path)[1]):
            tracker.log(3, {"x": again})
        assert scalars(tmp_path) == {"x": [(1, 1.0), (2, 2.0), (3, again)]}
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2, "the current file, and the one before it"


def test_a_tensorboard_that_looks_on_forgets_what_was_undone(tmp_path: Path) -> None:
    jsonl, events = open_both(tmp_path)
    for step in (1, 2, 3):
        jsonl.log(step, {"x": step})
        events.log(step, {"x": step})
    watching = EventAccumulator(str(tmp_path / "tensorboard"))
    watching.Reload()
    jsonl.rewind(1)
    open_both(tmp_path)
    watching.Reload()
    assert [(event.step, event.value) for event in watching.Scalars("x")] == [(1, 1.0)]


def test_switched_on_late_it_has_the_beginning_too(tmp_path: Path) -> None:
    JsonlTracker(tmp_path).log(1, {"x": 1.0, "broken": math.inf})
    (first,) = read_jsonl(tmp_path / "metrics.jsonl")
    open_both(tmp_path)
    found = scalars(tmp_path)
    assert found["x"] == [(1, 1.0)]
    ((step, value),) = found["broken"]
    assert step == 1
    assert math.isnan(value)
    assert set(found) == {"x", "broken"}
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    assert accumulator.Scalars("x")[0].wall_time == first["time"]


def test_a_torn_record_costs_nothing(tmp_path: Path) -> None:
    jsonl, events = open_both(tmp_path)
    for tracker in (jsonl, events):
        tracker.log(1, {"x": 1.0})
    (file,) = (tmp_path / "tensorboard").iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    open_both(tmp_path)[1].log(2, {"x": 2.0})
    assert scalars(tmp_path) == {"x": [(1, 1.0), (2, 2.0)]}


def test_a_folder_that_cannot_be_written_is_a_run_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match="cannot be written"):
        TensorboardTracker(tmp_path / "file", [])
    tracker = open_both(tmp_path)[1]
    (file,) = (tmp_path / "tensorboard").iterdir()
    file.unlink()
    file.mkdir()
    with pytest.raises(RunError, match="cannot be written") as stopped:
        tracker.log(1, {"x": 1.0})
    assert "switch track.tensorboard off" in stopped.value.remedy


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as refused:
        TensorboardTracker(tmp_path, [])
    assert "loopwright[tensorboard]" in refused.value.remedy
