"""From a run folder to its report: what is read, and what is chosen to be shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_up_run import CONFIG, add, answered, failed

from loopwright.errors import RunError
from loopwright.runs.report.data import Measure
from loopwright.runs.report.gather import (
    PAIRS,
    EvaluatedTwice,
    compare_evaluations,
    gather_report,
    measure_of,
    metrics_by_step,
    summarise,
    write_report,
)
from loopwright.runs.run_folder import RunFolder
from loopwright.types import Rollout, RolloutKey


def test_gather_reads_the_numbers_of_a_run(made_up_run):
    run = summarise(made_up_run)
    assert run.measure is Measure.ACCURACY
    assert run.series("reward/mean") == ((1, 0.0), (2, 0.5), (3, 1.0))
    assert run.series("learner/entropy") == ()
    assert [(p.before.mode, p.before.reward, p.after.reward, p.after.failed) for p in run.progress() if p.after] == [
        ("greedy", 0.5, 1.0, 1),
        ("sampled", 0.5, 1.0, 1),
    ]
    assert set(run.phases) == {"rollout", "evaluate"}
    assert (run.report, run.export) == (None, None)


def test_the_report_compares_the_same_tasks_and_samples_early_middle_and_late(made_up_run):
    data = gather_report(made_up_run)
    assert [(c.mode, c.before, c.after, c.better, c.worse, c.same) for c in data.comparisons] == [
        ("greedy", 0, 3, 1, 0, 1),
        ("sampled", 0, 3, 1, 0, 1),
    ]
    ((old, new),) = data.comparisons[0].pairs
    assert (old.task.id, old.score, new.task.id, new.score) == ("1+1", 0.0, "1+1", 1.0)
    assert [sample.step for sample in data.samples] == [1, 2, 3]
    assert [str(rollout.key) for rollout in data.samples[0].rollouts] == ["train/000000/00/0", "train/000001/00/0"]
    assert data.facts["batch"] == "2 tasks x 2 samples"
    assert "samples_per_task: 2" in data.config


def test_write_report_makes_one_whole_file(made_up_run):
    path = write_report(made_up_run)
    text = path.read_text()
    assert path == made_up_run.report
    assert text.rstrip().endswith("</html>")
    assert "&lt;script&gt;3&lt;/script&gt;" in text
    assert "<script>" not in text
    assert list(made_up_run.path.glob(".report*")) == []
    assert summarise(made_up_run).report == path


def test_a_run_that_has_only_begun_has_a_report(tmp_path: Path):
    with RunFolder.open(tmp_path / "new", CONFIG) as folder:
        text = write_report(folder).read_text()
    assert "No step has been trained yet." in text


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(RunError, match="is not the folder of a run"):
        summarise(RunFolder(tmp_path))


def test_the_largest_gains_are_shown_first_and_failures_are_not_compared():
    def side(answers: list[str | None]) -> tuple[Rollout, ...]:
        keyed = [(RolloutKey("heldout", i, 0), add(i, i), answer) for i, answer in enumerate(answers)]
        return tuple(
            failed(key, task) if answer is None else answered(key, task, answer) for key, task, answer in keyed
        )

    old = side(["0", "no", "no", None, "no", "no", "no", "no"])
    new = side(["no", "2", None, "6", "8", "10", "12", "14"])
    found = compare_evaluations(EvaluatedTwice("heldout", "greedy", 0, 9, old, new))
    assert (found.better, found.worse, found.same) == (5, 1, 0)
    assert [pair[0].task.id for pair in found.pairs] == ["1+1", "4+4", "5+5", "6+6"]
    assert len(found.pairs) == PAIRS


def test_samples_of_one_task_are_compared_as_one_task():
    def side(*answers: str) -> tuple[Rollout, ...]:
        return tuple(answered(RolloutKey("held", 0, i), add(1, 1), answer) for i, answer in enumerate(answers))

    found = compare_evaluations(EvaluatedTwice("held", "sampled", 0, 9, side("2", "no", "no"), side("no", "2", "2")))
    assert (found.better, found.worse, found.same) == (1, 0, 0)
    ((old, new),) = found.pairs
    assert (old.key.member, new.key.member) == (1, 1), "the worst before, the best after"


def test_metrics_of_one_step_may_be_on_several_lines():
    records: list[dict[str, Any]] = [{"step": 1, "a": 1.0, "b": None}, {"step": 1, "c": 2}, {"step": 1, "a": 3.0}]
    assert metrics_by_step(records)[1] == {"step": 1, "a": 3.0, "c": 2}


def test_only_scores_of_zero_and_one_are_an_accuracy():
    right = answered(RolloutKey("t", 0, 0), add(1, 1), "2")
    assert measure_of([right, failed(RolloutKey("t", 1, 0), add(1, 2))]) is Measure.ACCURACY
    assert measure_of([failed(RolloutKey("t", 1, 0), add(1, 2))]) is Measure.REWARD
    assert measure_of([]) is Measure.REWARD
