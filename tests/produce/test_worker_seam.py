"""Production and its workers: what is lost on the way is infrastructure, and the way is short (R1, R2)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import CoroutineType
from typing import Any

import pytest
from house import House, task_set

from loopwright.agents import SingleTurn
from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.errors import BudgetError
from loopwright.judgers import IntegerAnswer
from loopwright.ports import GroupRow, Policy, RolloutWorker, StartedGroup
from loopwright.produce import Job
from loopwright.produce.group_filler import _filled
from loopwright.testing import ScriptedEngine, WorkerElsewhere
from loopwright.testing.virtual_time import run_virtually
from loopwright.types import (
    Episode,
    Failed,
    FailureCause,
    GroupStatus,
    Message,
    Rollout,
    RolloutKey,
    Sampling,
    Scored,
    Split,
    Task,
    Timing,
    Unscored,
)

FIRST = RolloutKey("math", 0, 0)
TASK = Task.ask("sum", "12+7?", truth=19)


def house_with(worker: list[WorkerElsewhere], lose: set[RolloutKey], silence: set[RolloutKey], **changes: Any) -> House:
    def wrap(local: RolloutWorker) -> WorkerElsewhere:
        elsewhere = WorkerElsewhere(local)
        elsewhere.lose, elsewhere.silence = lose, silence
        worker.append(elsewhere)
        return elsewhere

    return House(groups=1, members=2, wrap=wrap, **changes)


def test_a_silent_worker_is_infrastructure_and_its_rollout_is_made_again() -> None:
    made: list[WorkerElsewhere] = []
    house = house_with(made, set(), {FIRST})

    async def case() -> float:
        batch = await house.producer().produce_batch(1, 0)
        assert [rollout.key.attempt for rollout in batch.groups[0].rollouts] == [1, 0]
        assert all(isinstance(rollout.reward, Scored) for rollout in batch.groups[0].rollouts)
        return asyncio.get_running_loop().time()

    seconds = run_virtually(case())
    assert 60 <= seconds <= 67, "the default of rollout.worker_silence_seconds"
    assert made[0].cancelled == [FIRST], "cancellation reaches the worker"
    (lost,) = [rollout for rollout in house.seen if isinstance(rollout.reward, Failed)]
    assert isinstance(lost.reward, Failed)
    assert (lost.key, lost.reward.cause, lost.reward.error) == (FIRST, FailureCause.INFRA, "WorkerLostError")
    assert "silent for 60 s" in lost.reward.detail


def test_a_worker_that_is_heard_of_may_take_its_time() -> None:
    class Slow:
        async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
            await asyncio.sleep(500)
            return await SingleTurn().run(task, policy)

    made: list[WorkerElsewhere] = []
    house = house_with(made, set(), set(), task_sets=[task_set(loop=Slow())])

    async def case() -> None:
        batch = await house.producer().produce_batch(1, 0)
        assert [rollout.key.attempt for rollout in batch.groups[0].rollouts] == [0, 0]

    run_virtually(case())


async def test_a_worker_that_dies_is_infrastructure() -> None:
    made: list[WorkerElsewhere] = []
    house = house_with(made, {FIRST}, set())
    batch = await house.producer().produce_batch(1, 0)
    assert [rollout.key.attempt for rollout in batch.groups[0].rollouts] == [1, 0]


async def test_a_worker_hears_that_a_rollout_is_stored_and_not_before() -> None:
    heard: list[tuple[RolloutKey, bool]] = []

    class Listening(WorkerElsewhere):
        def stored(self, split: Split, key: RolloutKey) -> None:
            heard.append((key, (key.task_set, key.draw, key.member, key.attempt) in written))

    class Noting(MemoryStorage):
        async def put(self, row: GroupRow, rollout: Rollout) -> None:
            await super().put(row, rollout)
            key = rollout.key
            written.add((key.task_set, key.draw, key.member, key.attempt))

    written: set[tuple[str, int, int, int]] = set()
    house = House(groups=1, members=2, wrap=Listening, storage=Noting(), max_attempts=2)
    await house.producer().produce_batch(1, 0)
    assert sorted(key.member for key, _ in heard) == [0, 1]
    assert all(was_stored for _, was_stored in heard)


async def test_attempts_that_were_lost_with_an_earlier_process_do_not_count() -> None:
    """R3: the next one is attempt + 1 of the same group, and it may still be tried `max_attempts` times."""

    class Resumed(WorkerElsewhere):
        def first_attempt(self, split: Split, key: RolloutKey) -> int:
            return 2 if key == FIRST else key.attempt

    def wrap(local: RolloutWorker) -> Resumed:
        resumed = Resumed(local)
        resumed.lose = {replace(FIRST, attempt=2)}
        return resumed

    house = House(groups=1, members=2, wrap=wrap, max_attempts=2)
    batch = await house.producer().produce_batch(1, 0)
    assert [rollout.key.attempt for rollout in batch.groups[0].rollouts] == [3, 0]
    assert [rollout.key.attempt for rollout in house.seen if rollout.key.member == 0] == [2, 3]


async def test_workers_that_always_die_spend_the_budget() -> None:
    everyone = {
        RolloutKey("math", draw, member, attempt) for draw in range(9) for member in (0, 1) for attempt in (0, 1)
    }
    house = house_with([], everyone, set(), budget=2)
    with pytest.raises(BudgetError, match="infra WorkerLostError"):
        await house.producer().produce_batch(1, 0)


FRAMES_OF_0_1_0 = 13
"""Coroutines of ours from `produce_batch` to the loop's `run`, both counted, at version 0.1.0: `produce_batch`,
`_until_ready`; `make`, `fill`, `run`, `together`; `to_the_end`, `_once`, `attempt`, `_run_agent`, `run_rollout`,
`_run_agent`, `run`."""


def own_frames(task: asyncio.Task[Any]) -> list[str]:
    """The coroutines of ours that the task is in, outermost first."""
    names: list[str] = []
    awaited: Any = task.get_coro()
    while isinstance(awaited, CoroutineType):
        if "loopwright" in awaited.cr_code.co_filename:
            names.append(awaited.cr_code.co_qualname if sys.version_info >= (3, 11) else awaited.cr_code.co_name)
        awaited = awaited.cr_await
    return names


async def test_the_way_from_a_batch_to_its_agents_is_short() -> None:
    """Every coroutine on the way has its reason in docs/architecture.md."""
    seen: list[list[str]] = []
    engine = ScriptedEngine(["0"])
    await engine.pause()
    house = House(engine=engine, groups=1, members=2, wrap=lambda worker: worker)
    batch = asyncio.create_task(house.producer().produce_batch(1, 0))
    for _ in range(50):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        seen.append(own_frames(task))
    await engine.resume()
    await batch
    agent, _ = [names for names in seen if "SingleTurn.run" in names]
    (filling,) = [names for names in seen if "GroupFiller.fill" in names]
    (producing,) = [names for names in seen if "AgentLoopManager.produce_batch" in names]
    way = [*producing, *filling, *agent[: agent.index("SingleTurn.run") + 1]]
    assert way == [
        "AgentLoopManager.produce_batch",
        "AgentLoopManager._until_ready",
        "GroupFiller.fill",
        "together",
        "RolloutRunner._to_the_end",
        "LocalWorker.run",
        "SingleTurn.run",
    ]
    assert len(way) <= 0.6 * FRAMES_OF_0_1_0


def stored(member: int, attempt: int = 0) -> Rollout:
    key = RolloutKey("math", 0, member, attempt)
    return Rollout(key, TASK, Episode(TASK.messages, ()), Unscored(), Timing(0.0))


def test_a_member_that_was_not_started_interrupts_its_group() -> None:
    """R3: a group of which a member is missing is not through."""
    group = StartedGroup(GroupRow("math", 0, 0, TASK, 0, GroupStatus.PENDING))
    assert _filled(group, [stored(0), None]).was_interrupted
    assert not _filled(group, [stored(0), stored(1)]).was_interrupted


def test_the_next_attempt_begins_anew() -> None:
    """Neither the tokens nor the episode of an attempt that failed belong to the next one."""
    job = Job(FIRST, TASK, Sampling(), IntegerAnswer(), judge_only=stored(0), resume_from=stored(0), first_attempt=0)
    again = job.again()
    assert (again.key.attempt, again.judge_only, again.resume_from) == (1, None, None)
    assert again.request(1, 60.0).seed != job.request(1, 60.0).seed
