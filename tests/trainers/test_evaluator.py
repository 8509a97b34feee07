"""Evaluation: every task exactly once, with the same seeds each time; a failure is counted apart and told (R2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from loopwright.agents import EnginePolicy, SingleTurn
from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.errors import JudgeError
from loopwright.judgers import IntegerAnswer
from loopwright.ports import AgentLoop, Judger, Policy
from loopwright.produce import Limits, RolloutRunner, TaskSetRuntime
from loopwright.testing import CharRenderer, ScriptedEngine
from loopwright.trainers.evaluator import EvalMode, Evaluator
from loopwright.types import Episode, Failed, FailureCause, GenerateRequest, Message, Rollout, Sampling, Scored, Task

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


class Broken:
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
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    tracker: Spans = field(default_factory=Spans)
    seen: list[Rollout] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = ScriptedEngine(self.answers, steps=1)
        runner = RolloutRunner(
            lambda prefix, sampling: EnginePolicy(self.engine, CharRenderer(), sampling, prefix, 500),
            seed=1,
            limits=Limits(judge_attempts=1),
            concurrency=3,
            max_attempts=2,
        )
        sampling = Sampling(temperature=0.7, top_k=9, top_p=0.5)
        task_set = TaskSetRuntime("held", Numbers(), self.loop, self.judger, sampling)
        self.evaluator = Evaluator(
            [task_set], self.modes, runner, self.storage, self.tracker, on_rollout=self.seen.append
        )

    def stored(self, step: int, mode: EvalMode) -> list[Rollout]:
        return list(self.storage.eval_rollouts(step, "held", mode))


async def test_every_task_is_run_exactly_once_in_each_mode_and_stored() -> None:
    bench = Bench()
    metrics = await bench.evaluator.evaluate(3)
    assert metrics == {
        f"eval/held/{mode}/{name}": value
        for mode in EvalMode
        for name, value in (("reward", 0.8), ("scored", 5.0), ("failed", 0.0))
    }
    for mode in EvalMode:
        stored = bench.stored(3, mode)
        assert [rollout.task.id for rollout in stored] == [f"t{n}" for n in range(TASKS)]
        assert [rollout.score for rollout in stored] == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert len(bench.seen) == len(bench.engine.requests) == 2 * TASKS
    assert bench.tracker.seen == [
        ("evaluate", {"step": 3, "task_set": "held", "mode": mode, "tasks": TASKS}) for mode in EvalMode
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
        metrics = await bench.evaluator.evaluate(0)
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
        metrics = await bench.evaluator.evaluate(0)
        await bench.evaluator.evaluate(1)
    assert metrics == {
        f"eval/held/{mode}/{name}": value for mode in EvalMode for name, value in (("scored", 0.0), ("failed", 5.0))
    }
    kinds = [message for message in caplog.messages if "judge failure" in message]
    assert len(kinds) == 1
    assert "judger 'broken' returned 'seven'" in kinds[0]
    assert [message for message in caplog.messages if message not in kinds] == [
        f"eval/held/{mode} after step {step}: all 5 rollouts failed, so there is no reward"
        for step in (0, 1)
        for mode in EvalMode
    ]
