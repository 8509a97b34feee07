"""The replay buffer: what is handed out when, in which order, how old, and once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from stored_values import TASK, facts_of, make_failure, make_partial, make_rollout

from loopwright.buffer.replay import StoredBuffer
from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.errors import RunError
from loopwright.ports import ReplayBuffer, StalePolicy, StartedGroup, Storage
from loopwright.types import Failed, FailureCause, GroupStatus, Stale, Unscored

MASK = StalePolicy(Stale.MASK, horizon=2)
WAIT = StalePolicy(Stale.WAIT, horizon=2)
RETRY = StalePolicy(Stale.RETRY, horizon=2, max_expiries=1)


@pytest.fixture(params=["memory", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    if request.param == "memory":
        yield MemoryStorage()
    else:
        async with SqliteStorage(tmp_path / "rollouts.sqlite") as opened:
            yield opened


async def complete(buffer: ReplayBuffer, draw: int, *versions: int, task_set: str = "train") -> StartedGroup:
    """A group with one member per version."""
    started = await buffer.draw(task_set, draw, TASK, min(versions))
    for member, version in enumerate(versions):
        await buffer.put(started.row, make_rollout(draw, member, version=version, task_set=task_set))
    await buffer.settle(started.row, GroupStatus.COMPLETED)
    return started


async def test_the_oldest_groups_are_taken_first_and_once(storage: Storage) -> None:
    buffer = StoredBuffer(storage, StalePolicy(horizon=None))
    for draw, versions in enumerate([(2,), (1,), (3, 0), (1,)]):
        await complete(buffer, draw, *versions)
    assert buffer.ready("train", 9) == 4
    assert [group.draw for group in await buffer.take(9, {"train": 3})] == [2, 1, 3]
    assert [group.draw for group in await buffer.take(9, {"train": 1})] == [0]
    with pytest.raises(RunError, match="1 groups of task set 'train' were asked for at step 9, and 0 are ready"):
        await buffer.take(9, {"train": 1})


async def test_what_is_taken_is_what_was_stored_and_scored(storage: Storage) -> None:
    buffer = StoredBuffer(storage, MASK)
    started = await buffer.draw("train", 0, TASK, 0)
    await buffer.put(started.row, make_failure(0, 0))
    await buffer.put(started.row, make_rollout(0, 0, 1))
    await buffer.put(started.row, make_rollout(0, 1, reward=Failed(FailureCause.JUDGE, "E", "no")))
    await buffer.put(started.row, make_rollout(0, 2, reward=Unscored()))
    await buffer.put_rewards(started.row, [make_rollout(0, 2)])
    await buffer.settle(started.row, GroupStatus.COMPLETED)
    (group,) = await buffer.take(1, {"train": 1})
    assert [facts_of(one) for one in group.rollouts] == [facts_of(make_rollout(0, 0, 1)), facts_of(make_rollout(0, 2))]


async def test_taking_neither_adds_nor_hides_a_group(storage: Storage) -> None:
    """Production counts consumed and completed groups together: a gap between the two would draw one group too many."""
    buffer = StoredBuffer(storage, MASK)
    await complete(buffer, 0, 0)
    groups = await buffer.take(1, {"train": 1})
    assert (buffer.count("train", GroupStatus.COMPLETED), buffer.count("train", GroupStatus.CONSUMED)) == (0, 1)
    await buffer.consume(groups, 1)
    assert buffer.count("train", GroupStatus.CONSUMED) == 1
    assert (await storage.counts())["train"][GroupStatus.CONSUMED] == 1
    with pytest.raises(RunError, match="draw 0 of task set 'train' was not taken, or is consumed already"):
        await buffer.consume(groups, 1)


async def test_tokens_that_are_too_old_are_masked_and_the_others_are_not(storage: Storage) -> None:
    buffer = StoredBuffer(storage, MASK)
    await complete(buffer, 0, 0, 1)
    (group,) = await buffer.take(3, {"train": 1})
    old, young = (rollout.episode.chains[0] for rollout in group.rollouts if rollout.episode)
    assert (old.sampled, young.sampled, buffer.masked_tokens) == (0, 3, 3)
    assert group.oldest_version == 1


async def test_constrained_tokens_are_masked_and_an_old_one_makes_nothing_old(storage: Storage) -> None:
    buffer = StoredBuffer(storage, MASK)
    started = await buffer.draw("train", 0, TASK, 0)
    await buffer.put(started.row, make_rollout(0, 0, version=0, constrained=((2, 5),)))
    await buffer.put(started.row, make_rollout(0, 1, version=2, constrained=((3, 4),)))
    await buffer.settle(started.row, GroupStatus.COMPLETED)
    (group,) = await buffer.take(3, {"train": 1})
    forced, free = (rollout.episode.chains[0] for rollout in group.rollouts if rollout.episode)
    assert (forced.sampled, free.sampled) == (0, 2)
    assert (buffer.masked_tokens, buffer.constrained_tokens, group.oldest_version) == (0, 4, 2)


async def test_without_a_horizon_nothing_is_too_old(storage: Storage) -> None:
    buffer = StoredBuffer(storage, StalePolicy(Stale.RETRY, horizon=None, max_expiries=1))
    await complete(buffer, 0, 0)
    await buffer.expire(99)
    (group,) = await buffer.take(99, {"train": 1})
    assert (group.oldest_version, buffer.masked_tokens) == (0, 0)


async def test_a_group_expires_as_often_as_allowed_and_is_masked_then(storage: Storage) -> None:
    buffer = StoredBuffer(storage, RETRY)
    await complete(buffer, 0, 0, 3)
    await buffer.expire(2)
    assert buffer.count("train", GroupStatus.EXPIRED) == 0
    await buffer.expire(3)
    assert (buffer.ready("train", 3), buffer.count("train", GroupStatus.EXPIRED)) == (0, 1)

    again = await buffer.take_up("train", GroupStatus.EXPIRED, 3)
    assert again is not None
    assert (again.row.expiries, again.stored, again.first_attempts) == (1, (), {0: 1, 1: 1})
    for member in range(2):
        await buffer.put(again.row, make_rollout(0, member, 1, version=3))
    await buffer.settle(again.row, GroupStatus.COMPLETED)
    await buffer.expire(9)
    assert buffer.count("train", GroupStatus.EXPIRED) == 0, "it has had its chances"
    (group,) = await buffer.take(9, {"train": 1})
    assert [rollout.key.attempt for rollout in group.rollouts] == [1, 1]
    assert group.oldest_version is None


async def test_a_group_that_is_too_old_when_it_is_completed_expires_at_once(storage: Storage) -> None:
    buffer = StoredBuffer(storage, RETRY)
    slow = await buffer.draw("train", 0, TASK, 0)
    await buffer.put(slow.row, make_rollout(0))
    await buffer.expire(3)
    await buffer.settle(slow.row, GroupStatus.COMPLETED)
    assert (buffer.ready("train", 3), buffer.count("train", GroupStatus.EXPIRED)) == (0, 1)


async def test_a_group_expires_once_though_its_caller_is_cancelled_while_that_is_committed(storage: Storage) -> None:
    buffer = StoredBuffer(storage, RETRY)
    await complete(buffer, 0, 0)
    expiring = asyncio.create_task(buffer.expire(3))
    await asyncio.sleep(0)
    expiring.cancel()
    await asyncio.wait({expiring})
    assert buffer.count("train", GroupStatus.EXPIRED) == 1
    await buffer.expire(3)
    assert (await storage.counts())["train"][GroupStatus.EXPIRED] == 1
    again = await buffer.take_up("train", GroupStatus.EXPIRED, 3)
    assert again is not None
    assert again.row.expiries == 1


async def test_only_retry_lets_groups_expire(storage: Storage) -> None:
    for policy in (MASK, WAIT):
        buffer = StoredBuffer(MemoryStorage(), policy)
        await complete(buffer, 0, 0)
        await buffer.expire(9)
        assert buffer.count("train", GroupStatus.EXPIRED) == 0


async def test_an_aborted_group_goes_on_with_its_members(storage: Storage) -> None:
    buffer = StoredBuffer(storage, MASK)
    started = await buffer.draw("train", 0, TASK, 0)
    whole, partial = make_rollout(0, 0), make_partial(0, 1)
    await buffer.put(started.row, whole)
    await buffer.put(started.row, partial)
    await buffer.settle(started.row, GroupStatus.ABORTED)
    again = await buffer.take_up("train", GroupStatus.ABORTED, 1)
    assert again is not None
    assert [facts_of(rollout) for rollout in again.stored] == [facts_of(whole), facts_of(partial)]
    assert again.first_attempts == {0: 0, 1: 0}
    await buffer.put(again.row, make_rollout(0, 1, version=1))
    await buffer.settle(again.row, GroupStatus.COMPLETED)
    assert await buffer.take_up("train", GroupStatus.ABORTED, 1) is None


async def test_who_goes_on_first_is_the_oldest(storage: Storage) -> None:
    buffer = StoredBuffer(storage, MASK)
    for draw, version in ((0, 2), (1, 0), (2, 1)):
        started = await buffer.draw("train", draw, TASK, version)
        await buffer.put(started.row, make_partial(draw, version=version))
        await buffer.settle(started.row, GroupStatus.ABORTED)
    taken = [await buffer.take_up("train", GroupStatus.ABORTED, 2) for _ in range(3)]
    assert [started.row.draw for started in taken if started] == [1, 2, 0]


async def test_wait_keeps_the_step_waiting_for_a_group_with_its_last_chance(storage: Storage) -> None:
    buffer = StoredBuffer(storage, WAIT)
    await complete(buffer, 0, 0)
    late = await buffer.draw("other", 0, TASK, 0)
    assert [buffer.ready("train", step) for step in (1, 2, 3)] == [1, 0, 0], "version 0 may feed steps 1 and 2"
    with pytest.raises(RunError, match="0 are ready"):
        await buffer.take(2, {"train": 1})
    await buffer.put(late.row, make_rollout(0, task_set="other"))
    await buffer.settle(late.row, GroupStatus.COMPLETED)
    assert len(await buffer.take(2, {"train": 1, "other": 1})) == 2
    assert buffer.masked_tokens == 0


async def test_wait_takes_no_group_before_an_older_one(storage: Storage) -> None:
    """Or two steps' worth of groups could have their last chance at the same step."""
    buffer = StoredBuffer(storage, StalePolicy(Stale.WAIT, horizon=3))
    await complete(buffer, 0, 0)
    old = await buffer.draw("train", 1, TASK, 1)
    await complete(buffer, 2, 1)
    await complete(buffer, 3, 2)
    await complete(buffer, 0, 2, task_set="other")
    assert (buffer.ready("train", 3), buffer.ready("other", 3)) == (2, 1)
    assert [group.draw for group in await buffer.take(3, {"train": 2})] == [0, 2]
    await buffer.put(old.row, make_rollout(1, version=1))
    await buffer.settle(old.row, GroupStatus.COMPLETED)
    assert [group.draw for group in await buffer.take(4, {"train": 2})] == [1, 3]


async def test_an_aborted_group_without_tokens_keeps_nobody_waiting(storage: Storage) -> None:
    buffer = StoredBuffer(storage, WAIT)
    await complete(buffer, 0, 5)
    started = await buffer.draw("train", 1, TASK, 0)
    await buffer.settle(started.row, GroupStatus.ABORTED)
    assert buffer.ready("train", 7) == 1
    again = await buffer.take_up("train", GroupStatus.ABORTED, 5)
    assert again is not None
    assert [buffer.ready("train", step) for step in (6, 7)] == [1, 0], "its first token will be of version 5"
    await buffer.put(again.row, make_partial(1, version=5))
    await buffer.settle(again.row, GroupStatus.ABORTED)
    assert [buffer.ready("train", step) for step in (6, 7)] == [1, 0]


async def test_a_group_is_worked_on_and_settled_by_one_party(storage: Storage) -> None:
    buffer = StoredBuffer(storage, MASK)
    started = await complete(buffer, 0, 0)
    for call in (
        buffer.settle(started.row, GroupStatus.ABORTED),
        buffer.put(started.row, make_rollout(0, 5)),
        buffer.put_rewards(started.row, [make_rollout(0, 0)]),
    ):
        with pytest.raises(RunError, match="draw 0 of task set 'train' is not under way"):
            await call
    with pytest.raises(RunError, match="cannot be settled as expired"):
        await buffer.settle(started.row, GroupStatus.EXPIRED)
    with pytest.raises(RunError, match="completed does not go on"):
        await buffer.take_up("train", GroupStatus.COMPLETED, 0)


async def test_a_resumed_run_has_what_the_last_one_left(storage: Storage) -> None:
    first, _ = await StoredBuffer.resume(storage, RETRY, ["train"])
    for draw, version in ((0, 0), (1, 0), (2, 1), (3, 2)):
        await complete(first, draw, version)
    await first.consume(await first.take(1, {"train": 1}), 1)
    await first.consume(await first.take(2, {"train": 1}), 2)
    pending = await first.draw("train", 4, TASK, 1)
    await first.put(pending.row, make_partial(4, 1, 2, version=1))

    buffer, plans = await StoredBuffer.resume(storage, RETRY, ["train"], step=1)

    counts = {status: buffer.count("train", status) for status in GroupStatus if buffer.count("train", status)}
    assert counts == {
        GroupStatus.CONSUMED: 1,
        GroupStatus.COMPLETED: 2,
        GroupStatus.ABORTED: 1,
        GroupStatus.ROLLED_BACK: 1,
    }
    assert (plans["train"].redraw, plans["train"].next_draw) == ((3,), 5)
    assert [group.draw for group in await buffer.take(2, {"train": 2})] == [1, 2]
    again = await buffer.take_up("train", GroupStatus.ABORTED, 1)
    assert again is not None
    assert (again.row.draw, again.first_attempts, len(again.stored)) == (4, {1: 2}, 1)


async def test_a_group_that_expired_and_was_interrupted_keeps_only_its_new_members(storage: Storage) -> None:
    first, _ = await StoredBuffer.resume(storage, RETRY, ["train"])
    await complete(first, 0, 0, 0)
    await first.expire(3)
    again = await first.take_up("train", GroupStatus.EXPIRED, 2)
    assert again is not None
    await first.put(again.row, make_failure(0, 1, 1))
    await first.put(again.row, make_rollout(0, 1, 2, version=2))
    await first.settle(again.row, GroupStatus.ABORTED)
    again = await first.take_up("train", GroupStatus.ABORTED, 2)
    assert again is not None
    assert again.first_attempts == {0: 1, 1: 1}

    buffer, _ = await StoredBuffer.resume(storage, RETRY, ["train"], step=2)
    once_more = await buffer.take_up("train", GroupStatus.ABORTED, 2)
    assert once_more is not None
    assert [facts_of(rollout) for rollout in once_more.stored] == [facts_of(make_rollout(0, 1, 2, version=2))]
    assert once_more.first_attempts == {0: 1, 1: 1}, "attempts before the group expired do not count"
