"""Evaluation: every task exactly once, with the same seeds each time; a failure is counted apart and told (R2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents import AgentSetup, EnginePolicies, LocalWorker, SingleTurn
from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.config import CustomMetric
from loopwright.core.evaluation import Metric, majority_at_k, mean_reward, pass_at_k
from loopwright.errors import ConfigError, JudgeError
from loopwright.judgers import IntegerAnswer, MemberJudger
from loopwright.ports import AgentLoop, Judger, Policy
from loopwright.produce import Limits, RolloutRunner, TaskSetRuntime
from loopwright.testing import CharRenderer, ScriptedEngine
from loopwright.trainers.custom_metric import UserMetric
from loopwright.trainers.evaluator import EvalPlan, Evaluator
from loopwright.types import (
    Episode,
    EvalMode,
    Failed,
    FailureCause,
    GenerateRequest,
    Message,
    Rollout,
    Sampling,
    Scored,
    Split,
    Task,
)

TASKS = 5


class Numbers:
    """The n-th task asks for n."""

    def __len__(self) -> int:
        return TASKS

    def task(self, draw: int) -> Task:
        return Task.ask(f"t{draw}", f"say {draw}", truth=draw)


class Unwilling:
    """An agent that cannot work on one task."""

    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        if task.id == "t2":
            raise KeyError("tool")
        return await SingleTurn().run(task, policy)


class Broken(MemberJudger):
    name = "broken"

    async def judge(self, task: Task, episode: Episode) -> Scored:
        raise JudgeError("judger 'broken' returned 'seven'", remedy="return a number", error="WrongReturn")


class Spans:
    """A tracker that remembers its spans."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def log(self, step: int, metrics: object) -> None:
        raise AssertionError("the trainer logs what an evaluation returns")

    @contextmanager
    def span(self, name: str, *, step: int, **facts: Any) -> Iterator[None]:
        yield
        self.seen.append((name, {"step": step, **facts}))


def nearly_right(request: GenerateRequest) -> str:
    """The number that was asked for, except for 4."""
    digits = "".join(c for c in CharRenderer().text(request.prompt_ids) if c.isdigit())
    return "5" if digits == "4" else digits


@dataclass
class Bench:
    """An evaluator with everything it needs."""

    loop: AgentLoop = field(default_factory=SingleTurn)
    judger: Judger = field(default_factory=IntegerAnswer)
    answers: Callable[[GenerateRequest], str] = nearly_right
    modes: Sequence[EvalMode] = tuple(EvalMode)
    samples: int = 1
    metrics: tuple[Metric, ...] = (mean_reward,)
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    tracker: Spans = field(default_factory=Spans)
    seen: list[Rollout] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = ScriptedEngine(self.answers, steps=1)
        policies = EnginePolicies(self.engine, CharRenderer(), 500)
        runner = RolloutRunner(
            LocalWorker({(Split.EVAL, "held"): AgentSetup(self.loop)}, policies),
            seed=1,
            limits=Limits(judge_attempts=1),
            concurrency=3,
            max_attempts=2,
        )
        sampling = Sampling(temperature=0.7, top_k=9, top_p=0.5)
        task_set = TaskSetRuntime("held", Numbers(), self.judger, sampling)
        plans = [EvalPlan(mode, self.samples, self.metrics) for mode in self.modes]
        self.evaluator = Evaluator([task_set], plans, runner, self.storage, self.tracker, on_rollout=self.seen.append)

    def stored(self, step: int, mode: EvalMode) -> list[Rollout]:
        return list(self.storage.eval_rollouts(step, "held", mode))


async def test_every_task_is_run_exactly_once_in_each_mode_and_stored() -> None:
    bench = Bench()
    metrics = (await bench.evaluator.evaluate(3)).metrics
    expected = {"reward": 0.8, "reward/tasks": 5, "tasks": 5, "scored": 5, "failed": 0, "metrics_failed": 0}
    for mode in EvalMode:
        assert metrics[f"eval/held/{mode}/reward/stderr"] == pytest.approx(0.2)
        assert {name: metrics[f"eval/held/{mode}/{name}"] for name in expected} == expected
    assert len(metrics) == 2 * (1 + len(expected))
    for mode in EvalMode:
        stored = bench.stored(3, mode)
        assert [rollout.task.id for rollout in stored] == [f"t{n}" for n in range(TASKS)]
        assert [rollout.score for rollout in stored] == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert len(bench.seen) == len(bench.engine.requests) == 2 * TASKS
    assert bench.tracker.seen == [
        ("evaluate", {"step": 3, "task_set": "held", "mode": mode, "tasks": TASKS, "rollouts": TASKS})
        for mode in EvalMode
    ]


async def test_greedy_takes_the_likeliest_token_and_sampled_samples_as_in_training() -> None:
    def ways(bench: Bench) -> set[tuple[float, int, float]]:
        return {(r.sampling.temperature, r.sampling.top_k, r.sampling.top_p) for r in bench.engine.requests}

    greedy, sampled = Bench(modes=[EvalMode.GREEDY]), Bench(modes=[EvalMode.SAMPLED])
    await greedy.evaluator.evaluate(0)
    await sampled.evaluator.evaluate(0)
    assert ways(greedy) == {(0.0, 0, 1.0)}
    assert ways(sampled) == {(0.7, 9, 0.5)}


async def test_each_evaluation_has_the_same_seeds_and_each_task_and_mode_its_own() -> None:
    bench = Bench()
    await bench.evaluator.evaluate(0)
    await bench.evaluator.evaluate(10)
    seeds = [request.sampling.seed for request in bench.engine.requests]
    first, second = seeds[: 2 * TASKS], seeds[2 * TASKS :]
    assert sorted(first) == sorted(second)
    assert len(set(first)) == 2 * TASKS


async def test_a_failure_is_counted_apart_and_no_other_task_takes_its_place(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(loop=Unwilling(), modes=[EvalMode.GREEDY])
    with caplog.at_level(logging.WARNING, "loopwright"):
        metrics = (await bench.evaluator.evaluate(0)).metrics
    assert metrics["eval/held/greedy/reward"] == 0.75, "the mean of what was scored: three right, one wrong"
    assert (metrics["eval/held/greedy/scored"], metrics["eval/held/greedy/failed"]) == (4.0, 1.0)
    stored = bench.stored(0, EvalMode.GREEDY)
    assert [rollout.key.draw for rollout in stored] == list(range(TASKS))
    failed = stored[2].reward
    assert isinstance(failed, Failed)
    assert (failed.cause, stored[2].key.attempt) == (FailureCause.AGENT, 1)
    (told,) = caplog.messages
    assert "rollout held/000002/00/0: agent failure" in told


async def test_a_broken_judger_is_told_once_and_leaves_no_reward(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(judger=Broken())
    with caplog.at_level(logging.WARNING, "loopwright"):
        metrics = (await bench.evaluator.evaluate(0)).metrics
        await bench.evaluator.evaluate(1)
    expected = {"tasks": 5, "scored": 0, "failed": 5, "reward/tasks": 0, "metrics_failed": 0}
    assert metrics == {f"eval/held/{mode}/{name}": value for mode in EvalMode for name, value in expected.items()}
    kinds = [message for message in caplog.messages if "judge failure" in message]
    assert len(kinds) == 1
    assert "judger 'broken' returned 'seven'" in kinds[0]
    assert [message for message in caplog.messages if message not in kinds] == [
        f"eval/held/{mode} after step {step}: all rollouts failed, so there is no reward"
        for step in (0, 1)
        for mode in EvalMode
    ]


async def test_every_sample_is_stored_and_has_a_seed_of_its_own() -> None:
    bench = Bench(modes=[EvalMode.SAMPLED], samples=3)
    metrics = (await bench.evaluator.evaluate(0)).metrics
    stored = bench.stored(0, EvalMode.SAMPLED)
    assert [(r.key.draw, r.key.member) for r in stored] == [(t, n) for t in range(TASKS) for n in range(3)]
    assert len({request.sampling.seed for request in bench.engine.requests}) == 3 * TASKS
    assert bench.tracker.seen[0][1]["rollouts"] == 3 * TASKS
    assert (metrics["eval/held/sampled/tasks"], metrics["eval/held/sampled/scored"]) == (5, 15)


async def test_metrics_look_at_all_samples_of_a_task() -> None:
    said = {0: "0 9 0", 1: "9 9 1", 2: "9 9 9", 3: "3 3 3", 4: "9 4 4"}
    left = {task: iter(words.split()) for task, words in said.items()}

    def answer(request: GenerateRequest) -> str:
        digits = "".join(c for c in CharRenderer().text(request.prompt_ids) if c.isdigit())
        return next(left[int(digits)])

    metrics = (mean_reward, lambda tasks: pass_at_k(tasks, k=2, correct_at=1.0), lambda t: majority_at_k(t, k=3))
    bench = Bench(modes=[EvalMode.SAMPLED], samples=3, answers=answer, metrics=metrics)
    found = (await bench.evaluator.evaluate(0)).metrics
    assert found["eval/held/sampled/reward"] == pytest.approx((2 + 1 + 0 + 3 + 2) / 15)
    assert found["eval/held/sampled/pass@2"] == pytest.approx((1 + 2 / 3 + 0 + 1 + 1) / 5)
    assert found["eval/held/sampled/majority@3"] == pytest.approx(3 / 5)


class Silent(MemberJudger):
    """A judger that says nothing of the answer it read."""

    name = "silent"

    async def judge(self, task: Task, episode: Episode) -> Scored:
        return Scored(1.0)


async def test_a_majority_without_answers_is_an_error_and_no_zero() -> None:
    metrics = (mean_reward, lambda tasks: majority_at_k(tasks, k=1))
    bench = Bench(judger=Silent(), modes=[EvalMode.GREEDY], metrics=metrics)
    report = await bench.evaluator.evaluate(0)
    (error,) = report.errors
    assert error.message.startswith("eval/held/greedy: majority@1 needs the answers")
    assert "Scored(value, answer=...)" in error.remedy
    assert report.metrics["eval/held/greedy/metrics_failed"] == 1
    assert report.metrics["eval/held/greedy/reward"] == 1.0
    assert not any("majority" in name for name in report.metrics)


CUSTOM = """
def longest(tasks):
    return max(len(r.episode.answer) for t in tasks for r in t.rollouts if r.episode)

async def several(tasks):
    return {"right": sum(t.scores[0] for t in tasks), "one": True}

async def wrong(tasks):
    return "high"

async def absent(tasks):
    return float("nan")

async def slashed(tasks):
    return {"a/b": 1.0}

async def raises(tasks):
    return tasks[99]
"""


async def test_a_metric_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CUSTOM)
    names = ("longest", "several", "wrong", "absent", "slashed", "raises")
    metrics = tuple(UserMetric(CustomMetric(f"mine.py:{name}"), tmp_path, 60.0) for name in names)
    report = await Bench(modes=[EvalMode.GREEDY], metrics=metrics).evaluator.evaluate(0)
    own = {name.removeprefix("eval/held/greedy/"): value for name, value in report.metrics.items()}
    expected = {"longest": 1, "longest/tasks": 5, "several/right": 4, "several/one": 1, "several/tasks": 5}
    assert own == expected | {"tasks": 5, "scored": 5, "failed": 0, "metrics_failed": 4}
    told = [error.message for error in report.errors]
    assert "metric 'wrong' is 'high'" in told[0]
    assert "metric 'absent' is nan" in told[1]
    assert "the key 'a/b'" in told[2]
    assert "metric 'raises' raised IndexError" in told[3]
    assert "mine.py:18" in told[3]


def test_a_metric_that_cannot_be_called_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("number = 3\n")
    with pytest.raises(ConfigError, match="cannot be called"):
        UserMetric(CustomMetric("mine.py:number"), tmp_path, 60.0)


async def test_a_metric_past_its_deadline_is_stopped_and_missing(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import time\ndef slow(tasks):\n    time.sleep(60)\n")
    metrics = (UserMetric(CustomMetric("mine.py:slow"), tmp_path, 0.2),)
    report = await Bench(modes=[EvalMode.GREEDY], metrics=metrics).evaluator.evaluate(0)
    assert report.metrics["eval/held/greedy/metrics_failed"] == 1
    assert "metric 'slow' gave nothing within 0.2 s" in report.errors[0].message
