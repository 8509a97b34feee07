"""Dynamic sampling: groups without signal are kept, not trained, and replaced within a budget (R1, R3, R4, D1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from house import House, KilledError, Mortal, task_set
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.errors import BudgetError, ConfigError
from loopwright.produce import AgentLoopManager, NoSignal, UserFilter
from loopwright.produce.group_filler import EndedGroup
from loopwright.testing import CharRenderer, ScriptedEngine
from loopwright.types import (
    Failed,
    FailureCause,
    GenerateRequest,
    Group,
    GroupStatus,
    Rollout,
    RolloutKey,
    Scored,
    Task,
    Timing,
)


def teaching(draws: Sequence[int]) -> ScriptedEngine:
    """Right answers; only in these draws, and there one member alone, a wrong one: they alone have signal."""

    def answer(request: GenerateRequest) -> str:
        _, draw, member, _ = request.id.split("/")[:4]
        right = "".join(c for c in CharRenderer().text(request.prompt_ids) if c.isdigit())
        return "no" if int(draw) in draws and int(member) == 0 else right

    return ScriptedEngine(answer)


def filtering_house(draws: Sequence[int], **settings: object) -> House:
    sets = [task_set(filter=NoSignal())]
    return House(**{"engine": teaching(draws), "task_sets": sets, **settings})  # type: ignore[arg-type]


async def test_groups_without_signal_are_replaced_and_kept_in_the_store() -> None:
    house = filtering_house([1, 4, 5])
    producer = house.producer()
    batch = await producer.produce_batch(1, 0)
    assert [group.draw for group in batch.groups] == [1, 4, 5]
    assert await house.counts() == {GroupStatus.COMPLETED: 3, GroupStatus.FILTERED: 3}
    assert [rollout.score for rollout in await house.storage.rollouts_of("math", 0)] == [1.0, 1.0]
    assert batch.metrics["groups/filtered"] == 3.0
    assert batch.metrics["groups/filtered_share"] == 0.5
    assert batch.metrics["groups/failed"] == 0.0
    assert batch.metrics["reward/mean"] == 0.5
    assert batch.metrics["reward/drawn"] == 0.75
    assert producer.next_draws == {"math": 6}


async def test_without_a_filter_nothing_is_filtered() -> None:
    house = House(engine=teaching([]))
    batch = await house.producer().produce_batch(1, 0)
    assert [group.draw for group in batch.groups] == [0, 1, 2]
    assert batch.metrics["groups/filtered"] == 0.0


async def test_a_step_that_finds_too_little_trains_with_what_it_has() -> None:
    house = filtering_house([0, 30], filter_budget=5)
    producer = house.producer()
    batch = await producer.produce_batch(1, 0)
    assert [group.draw for group in batch.groups] == [0]
    assert batch.metrics["groups/trained"] == 1.0
    assert producer.next_draws["math"] == 7, "3 at first, then 2 at a time until 5 in a row were filtered"


async def test_a_run_in_which_every_group_is_filtered_stops_and_says_why() -> None:
    house = filtering_house([], filter_budget=7)
    with pytest.raises(BudgetError) as caught:
        await (await house.resumed(step=3)).produce_batch(4, 3)
    for words in ("step 4", "'math'", "9 groups in a row were filtered by no_signal", "rewards of the last one: 1, 1"):
        assert words in caught.value.message
    assert "filter_budget" in caught.value.remedy
    assert await house.counts() == {GroupStatus.FILTERED: 9}, "three at a time, and none is left pending"


async def test_a_mastered_task_set_is_only_probed_while_the_other_one_trains() -> None:
    done = task_set("done", filter=NoSignal())
    alive = task_set("alive")
    house = House(engine=teaching([]), task_sets=[done, alive], groups=4, filter_budget=6)
    producer = house.producer()
    for step in (1, 2, 3):
        batch = await producer.produce_batch(step, step - 1)
        assert [group.task_set for group in batch.groups] == ["alive", "alive"]
    assert producer.next_draws == {"done": 6 + 2 + 2, "alive": 6}
    assert batch.metrics["groups/filtered/done"] == 2.0
    assert batch.metrics["groups/filtered/alive"] == 0.0
    assert batch.metrics["groups/filtered_share/done"] == 1.0
    assert "reward/mean/done" not in batch.metrics, "there is no mean of nothing"
    assert batch.metrics["reward/mean/alive"] == batch.metrics["reward/drawn/done"] == 1.0


async def test_one_kept_group_makes_it_worth_looking_again() -> None:
    house = filtering_house([0, 8, 20], groups=1, filter_budget=4)
    producer = house.producer()
    assert [g.draw for g in (await producer.produce_batch(1, 0)).groups] == [0]
    with pytest.raises(BudgetError):
        await producer.produce_batch(2, 1)
    assert producer.next_draws["math"] == 5
    with pytest.raises(BudgetError):
        await producer.produce_batch(2, 1)
    assert producer.next_draws["math"] == 6, "a spent budget leaves one probe per step"


async def test_a_resumed_run_remembers_how_many_were_filtered_in_a_row() -> None:
    house = filtering_house([0], groups=2, filter_budget=5)
    await house.producer().produce_batch(1, 0)
    again = filtering_house([], storage=house.storage, groups=2, filter_budget=5)
    batch = await (await again.resumed()).produce_batch(1, 0)
    assert [group.draw for group in batch.groups] == [0]
    assert len(again.seen) == 2, "one probe, not five"


MINE = """
import time

async def even(group):
    return group.draw % 2 == 0

async def says_yes(group):
    return "yes"

async def says_nothing(group):
    pass

async def raises(group):
    raise KeyError("difficulty")

def is_slow(group):
    time.sleep(60)

NUMBER = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Callable[..., UserFilter]:
    """A filter of the user's own, by its name."""
    (tmp_path / "mine.py").write_text(MINE)
    return lambda name, seconds=30.0: UserFilter(f"mine.py:{name}", tmp_path, seconds)


async def test_a_filter_of_the_users_own(mine: Callable[..., UserFilter]) -> None:
    async with mine("even") as even:
        house = House(task_sets=[task_set(filter=even)])
        batch = await house.producer().produce_batch(1, 0)
    assert [group.draw for group in batch.groups] == [0, 2, 4]


@pytest.mark.parametrize(
    ("name", "error"), [("says_yes", "WrongReturn"), ("says_nothing", "WrongReturn"), ("raises", "KeyError")]
)
async def test_what_a_filter_does_wrong_is_a_failure_and_never_a_decision(
    mine: Callable[..., UserFilter], name: str, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with mine(name) as wrong:
        house = House(task_sets=[task_set(filter=wrong)], budget=5)
        with caplog.at_level(logging.WARNING, "loopwright"), pytest.raises(BudgetError) as caught:
            await house.producer().produce_batch(1, 0)
    assert f"filter {error}" in caught.value.message
    assert f"filter 'mine.py:{name}'" in caught.value.message
    assert len(caplog.records) == 1
    assert await house.counts() == {GroupStatus.FAILED: 6}


async def test_a_filter_past_its_deadline_is_stopped_and_fails_its_group(mine: Callable[..., UserFilter]) -> None:
    async with mine("is_slow", 0.2) as slow:
        decided = await slow.decide(Group("math", 0, Task.ask("t", "?"), ()))
    assert isinstance(decided, Failed)
    assert (decided.cause, decided.error) == (FailureCause.FILTER, "Timeout")
    assert "said nothing within 0.2 s" in decided.detail


async def test_a_filter_that_cannot_be_called_is_a_config_error(mine: Callable[..., UserFilter]) -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        await mine("NUMBER").__aenter__()


@settings(max_examples=25, deadline=None)
@given(
    draws=st.sets(st.integers(0, 40), min_size=4),
    faults=st.sets(st.integers(0, 30)),
    writes=st.integers(0, 60),
)
async def test_every_drawn_group_ends_in_exactly_one_state_whatever_happens(
    draws: set[int], faults: set[int], writes: int
) -> None:
    """R3, D1: filtered, failed or completed, also when the run dies in between and is resumed."""
    storage = Mortal()
    engine = teaching(sorted(draws))
    engine._faults = frozenset(faults)
    first = filtering_house([], engine=engine, storage=storage, budget=100, filter_budget=100)
    storage.writes_left = writes
    try:
        await first.producer().produce_batch(1, 0)
    except KilledError:
        storage.writes_left = None
    stored = {rollout.key for rollout in first.seen}
    second = filtering_house(sorted(draws), storage=storage, filter_budget=100)
    producer = await second.resumed()
    batch = await producer.produce_batch(1, 0)
    assert not stored & {rollout.key for rollout in second.seen}, "no stored rollout is made again"
    kept = [group.draw for group in batch.groups]
    assert len(kept) == len(set(kept)) == 3
    assert set(kept) <= draws, "only groups with signal are trained"
    counts = await second.counts()
    assert set(counts) <= {GroupStatus.COMPLETED, GroupStatus.FILTERED, GroupStatus.FAILED}
    assert counts[GroupStatus.COMPLETED] == 3
    assert sum(counts.values()) == producer.next_draws["math"], "no draw was skipped or counted twice"


@settings(max_examples=8, deadline=None)
@given(
    draws=st.sets(st.integers(0, 60), min_size=1),
    budget=st.integers(1, 6),
    kept_steps=st.integers(0, 4),
    lost_writes=st.integers(0, 12),
)
async def test_a_deterministic_run_draws_the_same_groups_whether_or_not_it_was_interrupted(
    draws: set[int], budget: int, kept_steps: int, lost_writes: int
) -> None:
    """D3: how long a task set has been without signal decides what is drawn next, so a resumed run must know it."""
    steps = 5

    def house(storage: Mortal) -> House:
        sets = [task_set("rare", filter=NoSignal()), task_set("plain")]
        return House(engine=teaching(sorted(draws)), storage=storage, task_sets=sets, groups=4, filter_budget=budget)

    async def train(producer: AgentLoopManager, first: int, last: int) -> list[list[tuple[str, int]]]:
        trained = []
        for step in range(first, last + 1):
            batch = await producer.produce_batch(step, step - 1)
            await producer.consume(batch.groups, step)
            trained.append([(group.task_set, group.draw) for group in batch.groups])
        return trained

    whole = await train(house(Mortal()).producer(), 1, steps)

    storage = Mortal()
    producer = house(storage).producer()
    before = await train(producer, 1, kept_steps)
    checkpoint = producer.next_draws
    storage.writes_left = lost_writes
    with suppress(KilledError):
        await producer.produce_batch(kept_steps + 1, kept_steps)
    storage.writes_left = None
    resumed = await house(storage).resumed(kept_steps, checkpoint)
    after = await train(resumed, kept_steps + 1, steps)
    assert before + after == whole


def test_a_group_says_which_filter_dropped_it_or_what_failed() -> None:
    rollouts = tuple(made_rollout(member, 0.5) for member in (0, 1))
    group = Group("math", 0, Task.ask("t", "?"), rollouts)
    dropped = EndedGroup(group, GroupStatus.FILTERED, filtered_by="no_signal")
    assert dropped.why == "dropped by the filter no_signal: every reward is 0.5"
    failures = (Failed(FailureCause.AGENT, "KeyError", ""), Failed(FailureCause.JUDGE, "Timeout", "")) * 2
    failed = EndedGroup(group, GroupStatus.FAILED, (*failures, failures[0]))
    assert failed.why == "3 x agent KeyError, 2 x judge Timeout"
    assert EndedGroup(group, GroupStatus.COMPLETED).why is None


def made_rollout(member: int, reward: float) -> Rollout:
    return Rollout(RolloutKey("math", 0, member), Task.ask("t", "?"), None, Scored(reward), Timing(0.0))
