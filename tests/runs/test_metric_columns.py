"""Readers of metrics go on where they were, and know when they have to start again."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from loopwright.runs import appended_lines
from loopwright.runs.metric_columns import MetricColumns
from loopwright.track.jsonl import JsonlTracker


def read(columns: MetricColumns) -> tuple[str, list[int]]:
    columns.refresh()
    return columns.edition, list(columns.read([]).steps)


def test_a_file_that_grows_keeps_its_edition_and_one_that_was_rewritten_does_not(tmp_path: Path) -> None:
    tracker, columns = JsonlTracker(tmp_path), MetricColumns(tmp_path / "metrics.jsonl")
    assert read(columns) == ("", [])
    for step in (1, 2):
        tracker.log(step, {"loss": 0.5})
    first, steps = read(columns)
    assert steps == [1, 2]
    tracker.log(3, {"loss": 0.5})
    assert read(columns) == (first, [1, 2, 3])
    tracker.rewind(2)
    tracker.log(3, {"loss": 0.25})
    again, steps = read(columns)
    assert again != first
    assert (steps, columns.series("loss")[-1]) == ([1, 2, 3], (3, 0.25))


def test_another_reader_knows_the_edition_and_a_cut_file_has_another(tmp_path: Path) -> None:
    tracker, path = JsonlTracker(tmp_path), tmp_path / "metrics.jsonl"
    for step in (1, 2):
        tracker.log(step, {"loss": 0.5})
    first, second = MetricColumns(path), MetricColumns(path)
    assert read(first) == read(second)
    path.write_text(path.read_text().splitlines()[0] + "\n")
    cut, steps = read(first)
    assert steps == [1]
    assert cut != second.edition
    path.unlink()
    assert read(first) == ("", [])


def test_a_new_file_with_the_inode_of_the_old_one_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 1.0}\n')
    columns = MetricColumns(path)
    first, _ = read(columns)
    # Written in place: the inode stays, and the file is longer than what was read.
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 2.0}\n')
    again, steps = read(columns)
    assert again != first
    assert (steps, columns.series("loss")) == ([1, 2], [(1, 2.0), (2, 2.0)])


def test_a_torn_line_that_a_crash_left_is_read_as_it_was_written_again(tmp_path: Path) -> None:
    tracker, path = JsonlTracker(tmp_path), tmp_path / "metrics.jsonl"
    tracker.log(1, {"loss": 0.5})
    with path.open("ab") as file:
        file.write(b'{"step": 2, "lo')
    columns = MetricColumns(path)
    assert read(columns)[1] == [1]
    tracker.log(2, {"loss": 0.25})
    assert read(columns)[1] == [1, 2]
    assert columns.series("loss") == [(1, 0.5), (2, 0.25)]
    assert columns.names == ["loss"]


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appended_lines, "PIECE", 100)
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + "x" * 950)
    columns = MetricColumns(path)
    assert read(columns)[1] == [1]
    with path.open("a") as file:
        file.write("x" * 120 + '\n{"step": 2}\n')
    assert read(columns)[1] == [1, 2]


def test_many_names_in_a_late_line_cost_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    names = {f"name/{number}": 1.0 for number in range(20_000)}
    path.write_text('{"step": 1}\n' * 20_000 + json.dumps({"step": 2, **names}) + "\n")
    columns = MetricColumns(path)
    tracemalloc.start()
    columns.refresh()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert columns.series("name/7") == [(2, 1.0)]
    assert peak < 100 << 20
