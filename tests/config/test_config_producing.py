"""Which kinds of trainer and production go together, and which settings have an effect where."""

from __future__ import annotations

import importlib.util

import pytest
import yaml

from loopwright.types import PauseMode, ProduceKind, Stale, TrainerKind

ASYNC = "produce.kind=async"
APART = "trainer.kind=disaggregated"
MORE = "produce.over_sample=0.5"
EVAL = "eval={every: 4, data: {kind: jsonl, path: e}, agent: {kind: single_turn, judger: integer_answer}}"


def test_every_choice_is_read(load_text, minimal):
    config = load_text(
        minimal, ASYNC, APART, "produce.stale=retry", "produce.in_flight=keep", "produce.tail_batch=4"
    ).config
    assert config.trainer.kind is TrainerKind.DISAGGREGATED
    assert config.produce.kind is ProduceKind.ASYNC
    assert config.produce.stale is Stale.RETRY
    assert config.produce.in_flight is PauseMode.KEEP
    assert config.produce.tail_batch == 4


def test_off_is_a_word_not_a_truth_value(load_text, minimal):
    text = minimal + "produce: {kind: async, over_sample: 0.5, tail_batch: off}\n"
    assert load_text(text).config.produce.tail_batch == "off"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([APART], "trainer.kind: is disaggregated, but produce.kind is sync"),
        (
            ["rollout.worker_silence_seconds=50", "trainer.stall_seconds=50"],
            "rollout.worker_silence_seconds: is 50, but trainer.stall_seconds is 50",
        ),
        (["task_sets.0.produce=async"], "task_sets.0.produce: is async, but produce.kind is sync"),
        ([ASYNC, MORE, "produce.in_flight=keep"], "produce.in_flight: is keep, but trainer.kind is colocate"),
        ([ASYNC, MORE, "trainer.deterministic=true"], "trainer.deterministic: is on, but produce.kind is async"),
        ([ASYNC, APART, "produce.stale=retry", "produce.tail_batch=off"], "produce.tail_batch: is off"),
        ([ASYNC, APART, "produce.tail_batch=0"], "produce.tail_batch: is 0"),
        (["rollout.concurrency=many"], "rollout.concurrency: is 'many', must be 'auto' or a whole number"),
        (["rollout.concurrency=0"], "rollout.concurrency: is 0, must be 'auto' or at least 1"),
        (
            [ASYNC, APART, "trainer.sync_interval=4", "trainer.checkpoint_every=10"],
            "trainer.checkpoint_every: is 10, which is no multiple of trainer.sync_interval (4)",
        ),
        (
            [ASYNC, APART, "trainer.sync_interval=5", EVAL],
            "eval.every: is 4, which is no multiple of trainer.sync_interval (5)",
        ),
    ],
)
def test_what_cannot_work_is_one_problem(problems_of, minimal, overrides, words):
    (problem,) = problems_of(minimal, *overrides)
    assert words in problem


def test_a_deterministic_run_names_both_kinds_that_are_in_its_way(problems_of, minimal):
    problems = problems_of(minimal, ASYNC, APART, "trainer.deterministic=true")
    assert [problem.split(": ")[1][:40] for problem in problems] == [
        "is on, but trainer.kind is disaggregated",
        "is on, but produce.kind is async",
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        [ASYNC, APART],
        [ASYNC, APART, "produce.max_staleness=0"],
        [ASYNC, APART, "task_sets.0.produce=sync"],
        [ASYNC, APART, "trainer.sync_interval=5", "trainer.checkpoint_every=10", "rollout.engine.threads=1"],
        [ASYNC, APART, "trainer.sync_interval=2", "trainer.sync=on_demand", EVAL],
        [ASYNC, APART, "trainer.sync_interval=8", "trainer.checkpoint_every=8", "eval.every=0", EVAL.replace("4", "0")],
        [ASYNC, APART, "produce.stale=retry", "produce.max_expiries=3", "produce.tail_batch=2"],
        [ASYNC, APART, "rollout.concurrency=128"],
        [ASYNC, APART, "rollout.concurrency=auto", "rollout.engine.max_batch=512"],
        [ASYNC, MORE, "produce.in_flight=drain", "rollout.concurrency=96"],
        [ASYNC, "produce.over_sample=1.0", "produce.stale=wait"],
        [ASYNC, "produce.over_sample=3", "produce.max_staleness=3"],
        ["buffer.kind=memory"],
    ],
)
def test_what_works_gives_no_warning(load_text, minimal, overrides):
    assert load_text(minimal, *overrides).warnings == ()


@pytest.mark.parametrize(
    ("field", "overrides"),
    [
        ("produce.max_staleness", ["produce.max_staleness=2"]),
        ("produce.stale", ["produce.stale=wait"]),
        ("produce.in_flight", ["produce.in_flight=drain"]),
        ("produce.in_flight", ["produce.in_flight=keep"]),
        ("produce.over_sample", [MORE]),
        ("produce.over_sample", [ASYNC, APART, MORE]),
        ("produce.max_expiries", ["produce.max_expiries=5"]),
        ("produce.max_expiries", [ASYNC, APART, "produce.max_expiries=5"]),
        ("produce.tail_batch", [ASYNC, APART, "produce.tail_batch=5"]),
        ("produce.kind", [ASYNC]),
        ("task_sets.0.produce", ["task_sets.0.produce=sync"]),
        ("eval.task_sets.0.produce", [EVAL, "eval.task_sets.0.produce=async"]),
        ("trainer.sync_interval", ["trainer.sync_interval=2"]),
        ("trainer.sync", ["trainer.sync=on_demand"]),
        ("trainer.sync", [ASYNC, APART, "trainer.sync=on_demand"]),
        ("rollout.engine.threads", ["rollout.engine.threads=1"]),
        ("rollout.concurrency", [ASYNC, APART, "rollout.concurrency=129"]),
        ("rollout.concurrency", [ASYNC, MORE, "rollout.concurrency=97"]),
        ("buffer.archive", ["buffer.kind=memory", "buffer.archive=false"]),
    ],
)
def test_a_setting_without_effect_in_the_chosen_mode_is_reported(load_text, minimal, field, overrides):
    (warning,) = load_text(minimal, *overrides).warnings
    assert warning.startswith(f"{field}: has no effect: ")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([ASYNC, MORE, "produce.max_staleness=0"], "is 0.5, more than produce.max_staleness (0)"),
        ([ASYNC, "produce.over_sample=3"], "no more groups are started than can be trained before they are too old"),
        ([ASYNC, "produce.over_sample=1.5", "produce.stale=wait"], "is 1.5, more than produce.max_staleness (1)"),
        ([ASYNC, APART, "learner.importance.kind=off"], "as if the newest had sampled them"),
    ],
)
def test_what_is_probably_not_meant_is_a_warning(load_text, minimal, overrides, words):
    (warning,) = load_text(minimal, *overrides).warnings
    assert words in warning


def test_an_engine_in_a_process_of_its_own_needs_an_extra(problems_of, load_text, minimal, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    problems = problems_of(minimal, ASYNC, APART, files=True)
    assert any("trainer.kind: needs the package uvicorn" in one and "loopwright[serve]" in one for one in problems)
    assert not any("uvicorn" in one for one in problems_of(minimal, files=True))


def test_a_stored_config_with_a_short_stall_is_accepted(load_text, minimal):
    """It names every setting, the default of rollout.worker_silence_seconds among them."""
    loaded = load_text(minimal, "trainer.stall_seconds=50")
    again = load_text(yaml.safe_dump(loaded.config.model_dump(mode="json")))
    assert again.config == loaded.config
