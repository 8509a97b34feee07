"""Readers of metrics go on where they were, and know when they have to start again."""

from __future__ import annotations

from pathlib import Path

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
