"""What was stored a moment ago is trained without being read back, and is what reading back would give."""

from __future__ import annotations

from stored_values import TASK, facts_of, make_failure, make_partial, make_rollout

from loopwright.buffer.fresh import Fresh
from loopwright.buffer.replay import StoredBuffer
from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.ports import StalePolicy
from loopwright.types import GroupStatus, Rollout, Stale, Unscored


class Reads(MemoryStorage):
    """Counts what is read from it."""

    count = 0

    async def rollouts_of(self, task_set: str, draw: int) -> tuple[Rollout, ...]:
        self.count += 1
        return await super().rollouts_of(task_set, draw)


async def test_a_group_is_taken_as_it_was_stored_and_is_not_read() -> None:
    storage = Reads()
    buffer = StoredBuffer(storage, StalePolicy(horizon=None))
    row = (await buffer.draw("train", 0, TASK, 0)).row
    for rollout in (make_failure(0, 0), make_rollout(0, 0, 1), make_partial(0, 1), make_rollout(0, 1, size=5)):
        await buffer.put(row, rollout)
    await buffer.put(row, make_rollout(0, 2, reward=Unscored()))
    await buffer.put_rewards(row, [make_rollout(0, 2)])
    await buffer.settle(row, GroupStatus.COMPLETED)
    (group,) = await buffer.take(1, {"train": 1})
    assert storage.count == 0
    assert [facts_of(one) for one in group.rollouts] == [facts_of(o) for o in await storage.rollouts_of("train", 0)]


async def test_what_another_process_stored_of_a_group_is_read() -> None:
    storage = Reads()
    row = (await StoredBuffer(storage, StalePolicy(horizon=None)).draw("train", 0, TASK, 0)).row
    await storage.put(row, make_rollout(0, 0))
    buffer, _ = await StoredBuffer.resume(storage, StalePolicy(horizon=None), ["train"])
    started = await buffer.take_up("train", GroupStatus.ABORTED, 0)
    assert started is not None
    await buffer.put(started.row, make_rollout(0, 1))
    await buffer.settle(started.row, GroupStatus.COMPLETED)
    storage.count = 0
    (group,) = await buffer.take(1, {"train": 1})
    assert storage.count == 1
    assert [rollout.key.member for rollout in group.rollouts] == [0, 1]


async def test_members_of_before_an_expiry_are_not_trained() -> None:
    storage = Reads()
    buffer = StoredBuffer(storage, StalePolicy(Stale.RETRY, horizon=1, max_expiries=1))
    row = (await buffer.draw("train", 0, TASK, 0)).row
    await buffer.put(row, make_rollout(0, 0))
    await buffer.put(row, make_rollout(0, 1))
    await buffer.settle(row, GroupStatus.COMPLETED)
    await buffer.expire(5)
    again = await buffer.take_up("train", GroupStatus.EXPIRED, 4)
    assert again is not None
    await buffer.put(again.row, make_rollout(0, 0, 1, version=4))
    await buffer.settle(again.row, GroupStatus.COMPLETED)
    (group,) = await buffer.take(5, {"train": 1})
    assert [(rollout.key.member, rollout.key.attempt) for rollout in group.rollouts] == [(0, 1)]
    assert storage.count == 0


def test_no_more_tokens_are_kept_than_allowed() -> None:
    fresh = Fresh(most=10)  # two rollouts of five tokens
    for draw in range(3):
        fresh.put(make_rollout(draw))
    assert fresh.pop("train", 2, {0: 0}) is None
    assert fresh.pop("train", 0, {0: 0}) is not None
    fresh.put(make_rollout(3))
    assert fresh.pop("train", 3, {0: 0}) is not None
    assert fresh.pop("train", 1, {0: 1}) is None, "another attempt"
    fresh.put(make_rollout(4, size=8))
    fresh.put(make_rollout(4, size=3))
    fresh.put(make_rollout(5))
    assert fresh.pop("train", 4, {0: 0}) is not None
    assert fresh.pop("train", 5, {0: 0}) is not None, "what was replaced takes no room"
