"""Batches of a colocated run: full, with bounded failure, nothing drawn twice or lost (R2, R3, R4, D1)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from house import House, KilledError, Mortal, RaisesOn, echo, task_set
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.errors import BudgetError, ChainError
from loopwright.judgers import IntegerAnswer, MemberJudger
from loopwright.ports import GroupRow
from loopwright.testing import FlakyJudger, ScriptedEngine
from loopwright.types import GroupStatus, Sampling, Task


async def test_a_batch_has_full_groups_in_order_and_is_stored() -> None:
    house = House()
    producer = house.producer()
    batch = await producer.produce_batch(1, 0)
    assert [group.draw for group in batch.groups] == [0, 1, 2]
    assert all(group.rewards == (1.0, 1.0) for group in batch.groups)
    assert [rollout.key.member for rollout in batch.groups[0].rollouts] == [0, 1]
    assert await house.counts() == {GroupStatus.COMPLETED: 3}
    assert len(house.seen) == 6
    assert batch.metrics["reward/mean"] == 1.0
    assert batch.metrics["reward/std"] == 0.0
    assert batch.metrics["response/tokens"] == 2.0
    assert batch.metrics["response/truncated"] == 0.0
    assert batch.metrics["failures/infra"] == batch.metrics["groups/failed"] == 0.0
    await producer.consume(batch.groups, 1)
    assert await house.counts() == {GroupStatus.CONSUMED: 3}
    assert [group.draw for group in (await producer.produce_batch(2, 1)).groups] == [3, 4, 5]
    assert producer.next_draws == {"math": 6}


class Draws(MemoryStorage):
    """Remembers how many draws were under way at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[int] = []
        self.now = 0

    async def draw(self, task_set: str, draw: int, task: Task, version: int) -> GroupRow:
        self.now += 1
        self.under_way.append(self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return await super().draw(task_set, draw, task, version)


async def test_the_groups_of_a_step_are_drawn_at_once() -> None:
    storage = Draws()
    batch = await House(storage=storage, groups=6).producer().produce_batch(1, 0)
    assert [group.draw for group in batch.groups] == [0, 1, 2, 3, 4, 5]
    assert storage.under_way == [1, 2, 3, 4, 5, 6]


async def test_no_more_groups_are_drawn_at_once_than_there_are_slots_for() -> None:
    storage = Draws()
    batch = await House(storage=storage, groups=6, members=4, concurrency=5).producer().produce_batch(1, 0)
    assert [group.draw for group in batch.groups] == [0, 1, 2, 3, 4, 5]
    assert storage.under_way == [1, 2, 1, 1, 1, 1]


async def test_seeds_differ_by_draw_member_and_attempt_and_repeat_in_another_run() -> None:
    async def seeds() -> dict[str, int]:
        house = House(engine=ScriptedEngine(echo, faults={1}))
        await house.producer().produce_batch(1, 0)
        return {request.id: request.sampling.seed for request in house.engine.requests}

    first = await seeds()
    assert len(set(first.values())) == len(first) == 7
    assert first == await seeds()


async def test_failed_members_are_tried_again() -> None:
    house = House(engine=ScriptedEngine(echo, faults={0, 3}))
    batch = await house.producer().produce_batch(1, 0)
    assert [len(group.rollouts) for group in batch.groups] == [2, 2, 2]
    assert sorted(r.key.attempt for group in batch.groups for r in group.rollouts) == [0, 0, 0, 0, 1, 1]
    assert batch.metrics["failures/infra"] == 2.0


async def test_a_group_that_cannot_be_filled_is_replaced_by_another_draw() -> None:
    house = House(task_sets=[task_set(loop=RaisesOn("t1"))])
    batch = await house.producer().produce_batch(1, 0)
    assert [group.draw for group in batch.groups] == [0, 2, 3]
    assert await house.counts() == {GroupStatus.COMPLETED: 3, GroupStatus.FAILED: 1}
    assert batch.metrics["groups/failed"] == 1.0
    assert batch.metrics["failures/agent"] == 4.0


async def test_min_members_lets_a_smaller_group_pass() -> None:
    judger = FlakyJudger(IntegerAnswer(), {0})
    house = House(task_sets=[task_set(judger=judger)], groups=1, members=3, min_members=2, max_attempts=1)
    batch = await house.producer().produce_batch(1, 0)
    assert [len(group.rollouts) for group in batch.groups] == [2]
    assert batch.metrics["failures/judge"] == 1.0


async def test_a_spent_budget_stops_the_run_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    judger = FlakyJudger(IntegerAnswer("strict"), range(10_000))
    house = House(task_sets=[task_set(judger=judger)], budget=5)
    with caplog.at_level(logging.WARNING, "loopwright"), pytest.raises(BudgetError) as caught:
        await (await house.resumed(step=6)).produce_batch(7, 6)
    message = caught.value.message
    for words in (
        "step 7",
        "'math'",
        "'strict'",
        "5 groups in a row",
        "judge JudgeError",
        "The first of them: judger 'strict' failed at call",
    ):
        assert words in message
    assert len(caplog.records) == 1, "the first failure of a kind is told, the others are counted"
    assert "strict" in caplog.text
    assert GroupStatus.PENDING not in await house.counts()


async def test_a_judge_failure_is_not_sampled_again() -> None:
    judger = FlakyJudger(IntegerAnswer(), {0})
    house = House(task_sets=[task_set(judger=judger)], groups=1, max_attempts=5)
    batch = await house.producer().produce_batch(1, 0)
    assert {rollout.key.attempt for rollout in house.seen} == {0}
    assert [group.draw for group in batch.groups] == [1]
    assert await house.counts() == {GroupStatus.COMPLETED: 1, GroupStatus.FAILED: 1}


async def test_tasks_that_do_not_fit_are_tried_once_and_stop_the_run_with_their_length() -> None:
    house = House(max_context=10, max_attempts=5)
    with pytest.raises(BudgetError, match=r"prompt of 23 tokens does not fit model\.max_context 10"):
        await house.producer().produce_batch(1, 0)
    assert {rollout.key.attempt for rollout in house.seen} == {0}
    assert house.engine.requests == []


async def test_failures_between_successes_do_not_spend_the_budget() -> None:
    odd = tuple(f"t{n}" for n in range(1, 100, 2))
    house = House(task_sets=[task_set(loop=RaisesOn(*odd))], groups=8, budget=2, max_attempts=1)
    batch = await house.producer().produce_batch(1, 0)
    assert [group.draw for group in batch.groups] == list(range(0, 16, 2))


async def test_rollouts_in_flight_are_bounded() -> None:
    house = House(engine=ScriptedEngine(echo, steps=2), groups=4, members=4, concurrency=3)
    await house.producer().produce_batch(1, 0)
    assert house.engine.most_live == 3


async def test_a_lockstep_engine_knows_how_many_agents_are_to_come() -> None:
    house = House(groups=2, members=2, concurrency=3, lockstep=True)
    await house.producer().produce_batch(1, 0)
    assert house.engine.expected == [3, 3, 2, 1, 0, 0]


async def test_a_lockstep_engine_is_released_when_the_batch_breaks() -> None:
    class Bug(MemberJudger):
        name = "bug"

        async def judge(self, task: Task, episode: object) -> Any:
            raise ChainError("a bug of ours", remedy="mend it")

    house = House(task_sets=[task_set(judger=Bug())], lockstep=True)
    with pytest.raises(ChainError):
        await house.producer().produce_batch(1, 0)
    assert house.engine.expected[-1] == 0


async def test_several_task_sets_share_the_batch_by_weight_and_keep_their_own_settings() -> None:
    short = task_set("short", weight=1.0, sampling=Sampling(max_new_tokens=1))
    long = task_set("long", weight=3.0)
    house = House(task_sets=[short, long], groups=8, members=1)
    batch = await house.producer().produce_batch(1, 0)
    assert [group.task_set for group in batch.groups] == ["short"] * 2 + ["long"] * 6
    assert {r.id.split("/")[0]: r.sampling.max_new_tokens for r in house.engine.requests} == {"short": 1, "long": 256}
    assert batch.metrics["response/truncated"] == 0.25


async def test_a_task_set_too_small_for_a_step_gets_its_turn() -> None:
    house = House(task_sets=[task_set("much", weight=0.9), task_set("little", weight=0.1)], groups=2, members=1)
    producer = house.producer()
    made = [group.task_set for step in range(1, 6) for group in (await producer.produce_batch(step, step - 1)).groups]
    assert (made.count("much"), made.count("little")) == (9, 1)
    assert producer.next_draws == {"much": 9, "little": 1}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 25), st.sets(st.integers(0, 12)))
async def test_after_a_kill_every_draw_is_finished_once(writes: int, faults: set[int]) -> None:
    """D1, R3: wherever the run dies, the next one completes what was drawn, in order, and skips nothing."""
    storage = Mortal()
    first = House(storage=storage, engine=ScriptedEngine(echo, faults=faults), budget=100)
    storage.writes_left = writes
    producer = first.producer()
    try:
        await producer.produce_batch(1, 0)
    except KilledError:
        storage.writes_left = None
    stored = {rollout.key for rollout in first.seen}
    second = House(storage=storage)
    batch = await (await second.resumed()).produce_batch(1, 0)
    assert not stored & {rollout.key for rollout in second.seen}, "no stored rollout is made again"
    draws = [group.draw for group in batch.groups]
    counts = await second.counts()
    assert counts.pop(GroupStatus.COMPLETED) == len(draws) == 3
    assert len(set(draws)) == 3
    assert set(counts) <= {GroupStatus.FAILED}
    assert max(draws) + 1 == len(draws) + sum(counts.values()), "no draw was skipped"


async def test_a_resumed_run_puts_a_stored_episode_before_its_judge_again() -> None:
    storage = Mortal()
    judger = FlakyJudger(IntegerAnswer(), {0, 1})
    killed = House(storage=storage, task_sets=[task_set(judger=judger)], groups=1)
    storage.writes_left = 3  # the draw and both rollouts
    with pytest.raises(KilledError):
        await killed.producer().produce_batch(1, 0)
    storage.writes_left = None
    again = House(storage=storage, groups=1, lockstep=True)
    batch = await (await again.resumed()).produce_batch(1, 0)
    assert again.engine.requests == [], "the episodes are sound"
    assert set(again.engine.expected) == {0}, "no agent is to come"
    (group,) = batch.groups
    assert group.rewards == (1.0, 1.0)
    assert [rollout.key.attempt for rollout in group.rollouts] == [0, 0], "it is the same attempt"
    first, second = ([r.episode.sampled_tokens for r in h.seen if r.episode] for h in (killed, again))
    assert first == second


async def test_completed_groups_of_a_resumed_run_are_used_before_anything_is_made() -> None:
    house = House()
    await house.producer().produce_batch(1, 0)
    again = House(storage=house.storage)
    batch = await (await again.resumed()).produce_batch(1, 0)
    assert [group.draw for group in batch.groups] == [0, 1, 2]
    assert again.seen == []
    assert batch.metrics["reward/mean"] == 1.0


async def test_discarded_draws_are_made_again_with_the_same_seeds() -> None:
    house = House()
    await house.producer().produce_batch(1, 0)
    again = House(storage=house.storage)
    batch = await (await again.resumed(next_draws={"math": 0})).produce_batch(1, 0)
    assert [group.draw for group in batch.groups] == [0, 1, 2]
    first, second = ({request.sampling.seed for request in h.engine.requests} for h in (house, again))
    assert first == second
