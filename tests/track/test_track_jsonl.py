"""Metrics and events: complete lines in order, whatever tears, raises or runs at once."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.errors import RunError
from loopwright.ports import Tracker
from loopwright.track.fanout import Trackers
from loopwright.track.jsonl import JsonlFile, JsonlTracker, read_jsonl


def metrics(folder: Path) -> list[dict[str, Any]]:
    return read_jsonl(folder / "metrics.jsonl")


def events(folder: Path) -> list[dict[str, Any]]:
    return read_jsonl(folder / "events.jsonl")


def test_metrics_are_one_flat_object_per_line(tmp_path: Path) -> None:
    tracker: Tracker = JsonlTracker(tmp_path)
    before = time.time()
    tracker.log(1, {"train/reward": 0.5})
    tracker.log(2, {"train/reward": 0.75, "train/loss": math.nan})
    first, second = metrics(tmp_path)
    assert list(first) == ["step", "time", "train/reward"]
    assert before <= first["time"] <= time.time()
    assert (second["step"], second["train/reward"], second["train/loss"]) == (2, 0.75, None)


def test_rewind_drops_later_steps_only(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path)
    tracker.rewind(0)
    for step in (1, 2, 3):
        tracker.log(step, {"x": step})
        with tracker.span("train", step=step):
            pass
    kept = metrics(tmp_path)[:2]
    tracker.rewind(2)
    assert metrics(tmp_path) == kept
    assert len(events(tmp_path)) == 3
    tracker.log(3, {"x": 3.5})
    assert [record["x"] for record in metrics(tmp_path)] == [1, 2, 3.5]


def test_a_failed_rewind_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    tracker = JsonlTracker(tmp_path)
    tracker.log(1, {"x": 1})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"metrics.jsonl cannot be written: .*No space left"):
        tracker.rewind(0)
    assert len(metrics(tmp_path)) == 1


def test_a_span_says_what_happened(tmp_path: Path) -> None:
    before = time.time()
    with JsonlTracker(tmp_path).span("rollout", step=3, groups=8, folder=tmp_path):
        time.sleep(0.02)
    (event,) = events(tmp_path)
    assert list(event) == ["name", "step", "start", "end", "who", "ok", "error", "facts"]
    assert (event["name"], event["step"], event["ok"], event["error"]) == ("rollout", 3, True, None)
    assert before <= event["start"]
    assert 0.02 <= event["end"] - event["start"] < 5
    assert event["who"] == "MainThread"
    assert event["facts"] == {"groups": 8, "folder": str(tmp_path)}


def test_a_span_never_ends_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([1000.0, 10.0])
    monkeypatch.setattr(time, "time", lambda: next(now))
    with JsonlTracker(tmp_path).span("train", step=1):
        pass
    (event,) = events(tmp_path)
    assert 1000.0 <= event["start"] <= event["end"] < 1001.0


def test_a_span_that_raises_is_written_and_raises_on(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path)
    for error in (ValueError("bad"), asyncio.CancelledError()):
        with pytest.raises(type(error)), tracker.span("train", step=1):
            raise error
    assert [(event["ok"], event["error"]) for event in events(tmp_path)] == [
        (False, "ValueError"),
        (False, "CancelledError"),
    ]


async def test_tasks_have_lanes_of_their_own(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path)

    async def work() -> None:
        with tracker.span("judge", step=1):
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for name in ("a", "b"):
            tasks.create_task(work(), name=name)
    assert sorted(event["who"] for event in events(tmp_path)) == ["a", "b"]


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path)

    def work() -> None:
        for step in range(50):
            with tracker.span("step", step=step, padding="x" * 500):
                pass

    threads = [Thread(target=work, name=f"lane-{n}") for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(events(tmp_path)) == 200


@given(st.lists(st.text(max_size=3), max_size=4), st.integers(0, 12_000), st.booleans())
def test_a_torn_line_is_skipped_and_then_replaced(
    tmp_path_factory: pytest.TempPathFactory, whole: list[str], torn: int, crashed: bool
) -> None:
    path = tmp_path_factory.mktemp("torn") / "x.jsonl"
    file = JsonlFile(path)
    for text in whole:
        file.append({"text": text})
    if crashed:
        with path.open("ab") as raw:
            raw.write(b'{"text": "' + b"x" * torn)
    expected = [{"text": text} for text in whole]
    assert read_jsonl(path) == expected
    file.append({"text": "next"})
    assert read_jsonl(path) == [*expected, {"text": "next"}]
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("line", ["{", "[1]", ""])
def test_damage_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
    with pytest.raises(RunError, match=r"metrics.jsonl, line 2 is not a JSON object"):
        read_jsonl(path)


def test_a_missing_file_has_no_records(tmp_path: Path) -> None:
    assert read_jsonl(tmp_path / "none.jsonl") == []


def test_a_folder_that_cannot_be_written_is_a_run_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be written"):
        JsonlTracker(tmp_path / "missing").log(1, {})


def test_all_trackers_hear_everything(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    everyone: Tracker = Trackers(*(JsonlTracker(folder) for folder in folders))
    everyone.log(1, {"x": 1.0})
    with pytest.raises(KeyError), everyone.span("train", step=1, tokens=5):
        raise KeyError
    for folder in folders:
        assert metrics(folder)[0]["x"] == 1.0
        assert events(folder)[0]["error"] == "KeyError"
        assert events(folder)[0]["facts"] == {"tokens": 5}


def test_lines_are_plain_json(tmp_path: Path) -> None:
    JsonlTracker(tmp_path).log(1, {"x": math.inf})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["x"] is None
