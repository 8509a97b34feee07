"""Settings that are legal, but probably not meant, are warnings: the run may start."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.top_k=50", "rollout.top_k: is 50"),
        ("rollout.top_p=0.9", "rollout.top_p: is 0.9"),
        ("sampling.top_k=5", "sampling.top_k: is 5"),
        ("rollout.samples_per_task=1", "a lone one teaches nothing"),
        ("model.dtype=bfloat16", "slower than float32"),
        ("judgers.mine={kind: native, path: 'judge.py:judge'}", "judgers.mine: has no effect: no agent names it"),
        ("task_sets.0.weight=2", "task_sets.0.weight: has no effect: there is only one task set"),
        ("eval.every=0", "eval: has no effect: it has no tasks"),
    ],
)
def test_one_odd_setting_gives_one_warning(load_text, minimal, override, words):
    (warning,) = load_text(minimal, override).warnings
    assert words in warning
    assert " -> " in warning


def test_settings_of_evaluation_that_only_training_uses(load_text, minimal):
    text = (
        minimal
        + """
eval:
  every: 50
  task_sets:
    - name: held_out
      weight: 2.0
      data: {kind: jsonl, path: e.jsonl, shuffle: false}
      agent: {kind: single_turn, judger: integer_answer}
"""
    )
    starts = {warning.split(": ")[0] for warning in load_text(text).warnings}
    assert starts == {"eval.task_sets.0.weight", "eval.task_sets.0.data.shuffle", "eval.every"}


def test_an_ordinary_config_has_none(load_text, minimal):
    assert load_text(minimal).warnings == ()
