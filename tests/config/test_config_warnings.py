"""Settings that are legal, but probably not meant, are warnings: the run may start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from loopwright.config import load
from loopwright.config.checks import IDLE
from loopwright.config.fields import options

EXAMPLES = Path(__file__).parents[2] / "examples"


EVAL = "eval={data: {kind: jsonl, path: e}, agent: {kind: single_turn, judger: integer_answer}}"
RESTING = "eval.task_sets.0"
PARTS = "parts: {a: {judger: integer_answer, weight: 2.0}}"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("rollout.top_k=50", "rollout.top_k: is 50"),
        ("rollout.top_p=0.9", "rollout.top_p: is 0.9"),
        ("sampling.top_k=5", "sampling.top_k: is 5"),
        ("rollout.samples_per_task=1", "a lone one teaches nothing"),
        ("model.dtype=bfloat16", "slower than float32"),
        ("judgers.mine={kind: native, path: 'judge.py:judge'}", "judgers.mine: has no effect: no agent names it"),
        ("eval.every=0", "eval: has no effect: it has no tasks"),
        ("learner.kl={kind: k1, coefficient: 0.1}", "learner.kl.kind: is k1"),
        ("rollout.engine={kind: vllm, num_actors: 1}", "only vLLM's build for CPUs starts"),
        (EVAL.replace("path: e", "path: tasks.jsonl"), "eval.data: has tasks that task set 'train' trains on"),
    ],
)
def test_one_odd_setting_gives_one_warning(load_text, minimal, overrides, words):
    (warning,) = load_text(minimal, overrides).warnings
    assert words in warning
    assert " -> " in warning


def test_half_precision_is_not_slow_on_a_gpu(load_text, minimal):
    assert load_text(minimal, "model.dtype=bfloat16", "model.device=cuda:1").warnings == ()


def test_generated_tasks_overlap_unless_their_seeds_are_far_apart(load_text, minimal):
    text = minimal.replace(
        "{kind: jsonl, path: tasks.jsonl}", "{kind: reasoning_gym, family: gcd, size: 900, seed: 50}"
    )
    held_out = EVAL.replace("{kind: jsonl, path: e}", "{kind: reasoning_gym, family: gcd, size: 20}")
    for seed in (31, 50, 949):
        (warning,) = load_text(text, held_out, f"eval.data.seed={seed}").warnings
        assert "eval.data: has tasks that task set 'train' trains on" in warning
        assert "set its seed to 950 or more" in warning
    for override in ("eval.data.seed=30", "eval.data.seed=950", "eval.data.family=lcm"):
        assert load_text(text, held_out, override).warnings == ()


@pytest.mark.parametrize("advantage", ["reinforce_pp", "{kind: python, path: 'a.py:a'}"])
@pytest.mark.parametrize("place", ["produce", "task_sets.0"])
def test_a_filter_that_drops_lessons_of_the_advantage_is_reported(load_text, minimal, advantage, place):
    (warning,) = load_text(minimal, f"{place}.filter=no_signal", f"learner.advantage={advantage}").warnings
    assert warning.startswith(f"{place}.filter: is no_signal, but learner.advantage is ")


def test_a_filter_of_several_task_sets_is_reported_once(load_text, minimal):
    second = "task_sets.1={name: b, data: {kind: jsonl, path: t}, agent: {kind: single_turn, judger: integer_answer}}"
    settings = ["task_sets.0.name=a", second, "produce.filter=no_signal", "learner.advantage=reinforce_pp"]
    (warning,) = load_text(minimal, *settings).warnings
    assert warning.startswith("produce.filter: is no_signal")


@pytest.mark.parametrize(
    "overrides",
    [
        ["produce.filter=no_signal", "learner.advantage=reinforce_pp_baseline"],
        ["learner.advantage=reinforce_pp"],
        ["learner.advantage=reinforce_pp", "produce.filter=filters.py:keep"],
    ],
)
def test_a_filter_that_drops_no_lessons_is_not_reported(load_text, minimal, overrides):
    assert load_text(minimal, *overrides).warnings == ()


@pytest.mark.parametrize(
    ("field", "overrides"),
    [
        ("task_sets.0.weight", ["task_sets.0.weight=2"]),
        (f"{RESTING}.weight", [EVAL, f"{RESTING}.weight=2"]),
        ("eval.data.shuffle", [EVAL, "eval.data.shuffle=false"]),
        (f"{RESTING}.filter", [EVAL, f"{RESTING}.filter=no_signal"]),
        ("data.columns", ["data.columns.prompt=q", "data.map=rows.py:task"]),
        ("produce.filter", ["produce.filter=no_signal", "task_sets.0.filter=none"]),
        ("produce.filter_budget", ["produce.filter_budget=9"]),
        ("sampling.temperature", ["sampling.temperature=1.0"]),
        ("rollout.max_new_tokens", ["rollout.max_new_tokens=9", "sampling.max_new_tokens=8"]),
        ("rollout.stop", ["rollout.stop=[a]", "sampling.stop=[b]"]),
        ("rollout.concurrency", ["rollout.concurrency=65"]),
        ("rollout.engine.max_batch", ["rollout.engine.max_batch=9", "rollout.concurrency=8"]),
        ("rollout.engine.cache_tokens", ["rollout.engine.cache_tokens=9", "trainer.deterministic=true"]),
        ("learner.loss.clip_low", ["learner.loss.clip_low=0.1"]),
        ("learner.loss.clip_high", ["learner.loss={kind: cispo, clip_high: 0.3}"]),
        ("learner.loss.dual_clip", ["learner.loss.dual_clip=3"]),
        ("learner.loss.constant_length", ["learner.loss.constant_length=9"]),
        ("learner.importance.cap", ["learner.importance={kind: off, cap: 3}"]),
        ("learner.importance.level", ["learner.importance={kind: off, level: sequence}"]),
        ("learner.importance.floor", ["learner.importance={kind: off, floor: 0.5}"]),
        ("learner.schedule", ["learner.schedule=cosine", "learner.warmup_steps=10"]),
        ("trainer.checkpoint_every", ["trainer.checkpoint_every=11"]),
        ("trainer.keep_checkpoints", ["trainer.keep_checkpoints=3"]),
        ("eval.samples", [EVAL, "eval.samples=4", "eval.sampled=false"]),
        ("eval.correct_at", [EVAL, "eval.correct_at=0.5"]),
        ("judgers.c.merge", ["judgers.c={kind: composed, by_source: {a: integer_answer}, merge: 'm.py:m'}"]),
        ("judgers.c.parts.a.weight", [f"judgers.c={{kind: composed, {PARTS}, merge: 'm.py:m'}}"]),
        ("judgers.c.source_key", [f"judgers.c={{kind: composed, {PARTS}, source_key: s}}"]),
        ("judgers.c.default", [f"judgers.c={{kind: composed, {PARTS}, default: integer_answer}}"]),
        ("judgers.c.timeout_seconds", [f"judgers.c={{kind: composed, {PARTS}, timeout_seconds: 3}}"]),
    ],
)
def test_a_setting_without_effect_is_reported(load_text, minimal, field, overrides):
    if field.startswith("judgers.c"):
        overrides = [*overrides, "agent.judger=c"]
    (warning,) = load_text(minimal, *overrides).warnings
    assert warning.startswith(f"{field}: has no effect: ")


@pytest.mark.parametrize(
    "overrides",
    [
        ["learner.loss.clip_low=0.1", "learner.mini_batches=2"],
        ["learner.loss={aggregate: constant, constant_length: 9}"],
        ["learner.importance={kind: mask, cap: 3, floor: 0.5}"],
        ["learner.schedule=cosine", "learner.warmup_steps=5"],
        ["trainer.keep_checkpoints=3", "trainer.checkpoint_every=4"],
        ["rollout.concurrency=65", EVAL],
        ["rollout.max_new_tokens=9", "sampling.max_new_tokens=8", EVAL],
        [EVAL, "eval.samples=4", "eval.correct_at=0.5", "eval.metrics=[accuracy]"],
        ["produce.filter=no_signal", "produce.filter_budget=9"],
        ["task_sets.0.filter=no_signal", "produce.filter_budget=9"],
    ],
)
def test_the_same_setting_where_it_has_an_effect_is_not(load_text, minimal, overrides):
    assert load_text(minimal, *overrides).warnings == ()


def test_an_evaluation_that_is_due_after_the_end(load_text, minimal):
    (warning,) = load_text(minimal, EVAL, "eval.every=50").warnings
    assert "eval.every: is 50, more than trainer.steps (10)" in warning


def test_every_rule_names_fields_that_exist():
    known = [re.sub(r"\[\w+\]", "", option.split(": ")[0]) for option in options()]
    places = {re.sub(r"\b(N|NAME)\b", "*", name) for name in known}
    for rule in IDLE:
        assert any(place == rule.name or place.startswith(f"{rule.name}.") for place in places), rule.name


def test_an_ordinary_config_has_none(load_text, minimal):
    assert load_text(minimal).warnings == ()


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_the_examples_have_none(example):
    assert load(example).warnings == ()


def test_spelling_out_every_default_is_not_odd(load_text, minimal):
    merged = load_text(minimal, EVAL).config.model_dump(mode="json")
    assert load_text(yaml.safe_dump(merged)).warnings == ()
