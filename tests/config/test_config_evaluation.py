"""What an evaluation measures: names that exist, with enough samples for them."""

from __future__ import annotations

import importlib.util

import pytest

from loopwright.config.evaluation import BuiltInMetric, CustomMetric, metric_spec
from loopwright.types import MetricKind

EVAL = """
eval:
  data: {kind: jsonl, path: e.jsonl}
  agent: {kind: single_turn, judger: integer_answer}
"""


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("mean", BuiltInMetric(MetricKind.MEAN)),
        ("accuracy", BuiltInMetric(MetricKind.ACCURACY)),
        ("pass@8", BuiltInMetric(MetricKind.PASS, 8)),
        ("majority@16", BuiltInMetric(MetricKind.MAJORITY, 16)),
        ("my.module:style", CustomMetric("my.module:style")),
        *((wrong, None) for wrong in ("pass", "pass@0", "pass@x", "mean@2", "accuracy@1", "median", "Mean", "")),
    ],
)
def test_a_metric_is_known_by_its_name(text, spec):
    assert metric_spec(text) == spec


def test_the_mean_is_always_measured_and_everything_once(load_text, minimal):
    config = load_text(minimal + EVAL, "eval.metrics=[accuracy, accuracy]").config.eval
    assert [spec.kind for spec in config.specs()] == [MetricKind.MEAN, MetricKind.ACCURACY]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["eval.metrics=[acuracy]"], "eval.metrics.0: there is no metric 'acuracy' (command line)"),
        (["eval.metrics=[pass@4]"], "pass@4 needs 4 samples of a task, and eval.samples is 1"),
        (["eval.metrics=[mean, majority@3]", "eval.samples=2"], "eval.metrics.1: majority@3 needs 3 samples"),
        (["eval.metrics=[pass@2]", "eval.samples=4", "eval.sampled=false"], "greedy evaluation has one"),
        (["eval.metrics=['a.py:reward']"], "the name 'reward' is taken"),
        (["eval.metrics=['a.py:style', 'b.py:style']"], "eval.metrics.1: the name 'style' is taken"),
    ],
)
def test_metrics_that_cannot_be_measured_are_refused(problems_of, minimal, overrides, words):
    (problem,) = problems_of(minimal + EVAL, *overrides)
    assert words in problem


@pytest.mark.parametrize("metric", ["pass@1", "majority@1"])
def test_one_sample_is_enough_for_one(load_text, minimal, metric):
    assert load_text(minimal + EVAL, f"eval.metrics=[{metric}]", "eval.sampled=false").config.eval.metrics == (metric,)


def test_a_metric_of_ones_own_must_be_there(problems_of, minimal, tmp_path):
    (tmp_path / "tasks.jsonl").touch()
    (tmp_path / "e.jsonl").touch()
    (tmp_path / "mine.py").write_text("def style(tasks): ...\n")
    (problem,) = problems_of(minimal + EVAL, "eval.metrics=['mine.py:stile']", files=True)
    assert "eval.metrics.0: mine.py has no 'stile'" in problem
    assert "did you mean 'style'?" in problem


@pytest.mark.parametrize(
    ("overrides", "place"),
    [
        (["eval.samples=4", "eval.sampled=false"], "eval.samples"),
        (["eval.correct_at=0.5"], "eval.correct_at"),
    ],
)
def test_settings_that_no_metric_looks_at_are_warned_of(load_text, minimal, overrides, place):
    (warning,) = load_text(minimal + EVAL, *overrides).warnings
    assert warning.startswith(f"{place}: has no effect")


def test_tensorboard_without_its_package_is_refused_before_anything_starts(problems_of, minimal, tmp_path, monkeypatch):
    (tmp_path / "tasks.jsonl").touch()
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else found(name))
    (problem,) = problems_of(minimal, "track.tensorboard=true", files=True)
    assert "track.tensorboard: needs the package tensorboard" in problem
    assert "pip install 'loopwright[tensorboard]'" in problem
