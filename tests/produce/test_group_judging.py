"""Judging whole groups: no episode is lost, half a ranking is none, and only the judge is asked again (R2, D1)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

import pytest
from house import House, KilledError, Mortal, RaisesOn, echo, task_set
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.core.redaction import MARK
from loopwright.errors import BudgetError, JudgeError
from loopwright.judgers import MemberJudger
from loopwright.testing import ScriptedEngine
from loopwright.types import Episode, Failed, FailureCause, Scored, Task, Unscored


class Ranking:
    """Scores members by their place, and fails at the calls (from 0) that a test names."""

    name = "ranking"
    judges_groups = True

    def __init__(self, faults: Collection[int] = ()) -> None:
        self.faults = faults
        self.calls: list[tuple[str, int]] = []

    async def score(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Scored]:
        self.calls.append((task.id, len(episodes)))
        if len(self.calls) - 1 in self.faults:
            raise JudgeError("judger 'ranking' is down", remedy="wake it", error="Down")
        return [Scored(float(place), {"place": place}) for place in range(len(episodes))]


def ranked(faults: Collection[int] = (), **changes: object) -> House:
    return House(task_sets=[task_set(judger=Ranking(faults))], **changes)  # type: ignore[arg-type]


async def test_a_group_is_judged_once_when_all_its_members_are_there() -> None:
    house = ranked(members=3)
    batch = await house.producer().produce_batch(1, 0)
    assert [group.rewards for group in batch.groups] == [(0.0, 1.0, 2.0)] * 3
    judger = house.task_sets[0].runtime.judger
    assert sorted(judger.calls) == [("t0", 3), ("t1", 3), ("t2", 3)]  # type: ignore[attr-defined]
    assert batch.metrics["reward/parts/place"] == 1.0
    assert len(house.seen) == 9, "each rollout is told of once, with its reward"
    assert all(isinstance(rollout.reward, Scored) for rollout in house.seen)
    stored = await house.storage.rollouts_of("math", 0)
    assert [(rollout.key.attempt, rollout.score) for rollout in stored] == [(0, 0.0), (0, 1.0), (0, 2.0)]


class InParts(MemberJudger):
    """Gives every episode the same parts."""

    name = "in parts"

    def __init__(self, **parts: float) -> None:
        self.parts = {name.replace("_", "/"): value for name, value in parts.items()}

    async def judge(self, task: Task, episode: Episode) -> Scored:
        return Scored(0.0, self.parts)


async def test_a_nested_part_is_not_taken_for_a_part_of_a_task_set() -> None:
    sets = [task_set("b", judger=InParts(a=1.0)), task_set("c", judger=InParts(a=3.0, a_b=7.0))]
    metrics = (await House(task_sets=sets, groups=2, members=1).producer().produce_batch(1, 0)).metrics
    assert {name: value for name, value in metrics.items() if name.startswith("reward/parts")} == {
        "reward/parts/a": 2.0,
        "reward/parts/a/b": 7.0,
        "reward/parts_of/b/a": 1.0,
        "reward/parts_of/c/a": 3.0,
        "reward/parts_of/c/a/b": 7.0,
    }


async def test_members_are_stored_before_their_judge_is_asked() -> None:
    house = ranked(faults=range(100), members=2, groups=1, budget=1)
    with pytest.raises(BudgetError, match="'ranking'"):
        await house.producer().produce_batch(1, 0)
    stored = await house.storage.rollouts_of("math", 0)
    assert [rollout.reward for rollout in stored] == [
        Failed(FailureCause.JUDGE, "Down", "judger 'ranking' is down (wake it)")
    ] * 2
    assert all(rollout.episode for rollout in stored)


KEY = "sk-0123456789abcdef"


class Tells(Ranking):
    """Repeats its key, and what it was shown, in what it gives and in what it raises."""

    async def score(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Scored]:
        assert not any(KEY in episode.answer for episode in episodes)
        if task.id == "t0":
            raise JudgeError(f"the key {KEY} is wrong", remedy="none", error="Wrong")
        return [Scored(1.0, answer=f"{KEY}: {episode.answer}") for episode in episodes]


async def test_a_judge_of_groups_that_repeats_its_key_tells_it_to_nobody() -> None:
    engine = ScriptedEngine(lambda request: f"It is {KEY}", steps=1)
    house = House(engine, task_sets=[task_set(judger=Tells())], secrets=[KEY])
    await house.producer().produce_batch(1, 0)
    failed, scored = [await house.storage.rollouts_of("math", draw) for draw in (0, 1)]
    wrong = Failed(FailureCause.JUDGE, "Wrong", f"the key {MARK} is wrong (none)")
    assert [rollout.reward for rollout in failed] == [wrong] * 2
    assert [rollout.reward for rollout in scored] == [Scored(1.0, answer=f"{MARK}: It is {MARK}")] * 2
    assert KEY not in repr(house.seen)


async def test_a_failed_member_is_tried_again_before_the_group_is_judged() -> None:
    house = ranked(engine=ScriptedEngine(echo, faults={1}), groups=1)
    batch = await house.producer().produce_batch(1, 0)
    assert house.task_sets[0].runtime.judger.calls == [("t0", 2)]  # type: ignore[attr-defined]
    assert sorted(rollout.key.attempt for rollout in batch.groups[0].rollouts) == [0, 1]


async def test_a_group_that_stays_too_small_is_not_judged() -> None:
    ranking = Ranking()
    house = House(task_sets=[task_set(judger=ranking, loop=RaisesOn("t0"))], groups=1)
    batch = await house.producer().produce_batch(1, 0)
    assert ranking.calls == [("t1", 2)]
    assert [group.draw for group in batch.groups] == [1]
    half = ranked(engine=ScriptedEngine(echo, faults={1}), groups=1, max_attempts=1)
    batch = await half.producer().produce_batch(1, 0)
    assert half.task_sets[0].runtime.judger.calls == [("t1", 2)], "one member of two is no ranking"  # type: ignore[attr-defined]
    (alone,) = [r for r in await half.storage.rollouts_of("math", 0) if r.episode]
    assert alone.reward == Unscored()


async def test_with_min_members_the_others_are_ranked_among_themselves() -> None:
    house = ranked(engine=ScriptedEngine(echo, faults={2}), groups=1, members=3, min_members=2, max_attempts=1)
    batch = await house.producer().produce_batch(1, 0)
    assert house.task_sets[0].runtime.judger.calls == [("t0", 2)]  # type: ignore[attr-defined]
    assert batch.groups[0].rewards == (0.0, 1.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 20), st.sets(st.integers(0, 8)))
async def test_wherever_it_dies_no_episode_is_made_twice_and_no_ranking_is_mixed(writes: int, faults: set[int]) -> None:
    storage = Mortal()
    storage.writes_left = writes
    first = ranked(faults, storage=storage, budget=100)
    with suppress(KilledError):
        await first.producer().produce_batch(1, 0)
    storage.writes_left = None
    second = ranked(storage=storage)
    producer = await second.resumed()
    drawn = range(producer.next_draws["math"])
    stored = {rollout.key for draw in drawn for rollout in await storage.rollouts_of("math", draw)}
    batch = await producer.produce_batch(1, 0)
    made = {request.id.rsplit("/", 1)[0] for request in second.engine.requests}
    assert not made & {str(key) for key in stored}, "a stored episode is sound"
    assert [group.rewards for group in batch.groups] == [(0.0, 1.0)] * 3
    assert sum((await second.counts()).values()) == producer.next_draws["math"], "every draw is in one state (R3)"
