"""The storage port, over every adapter: the same calls, the same answers, the same refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from stored_values import ON_POLICY, TASK, facts_of, group_of, make_failure, make_partial, make_rollout

from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.errors import DataError, RunError
from loopwright.ports import GroupRow, MemberRow, ResumePlan, Storage
from loopwright.types import Failed, FailureCause, GroupStatus, RolloutKey, Task, Unscored


@pytest.fixture(params=["memory", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    if request.param == "memory":
        yield MemoryStorage()
    else:
        async with SqliteStorage(tmp_path / "rollouts.sqlite") as opened:
            yield opened


async def complete(storage: Storage, draw: int, *, version: int = 0, members: int = 2) -> GroupRow:
    row = await storage.draw("train", draw, TASK, version)
    for member in range(members):
        await storage.put(row, make_rollout(draw, member, version=version))
    await storage.mark([("train", draw)], GroupStatus.COMPLETED)
    return row


async def consume(storage: Storage, draw: int, *, step: int) -> None:
    await complete(storage, draw, version=step - 1)
    await storage.consume([group_of(make_rollout(draw, version=step - 1))], step)


async def resume(storage: Storage, step: int, next_draw: int | None = None) -> ResumePlan:
    return (await storage.resume(["train"], step=step, next_draws=_from(next_draw), policy=ON_POLICY))["train"]


def _from(next_draw: int | None) -> dict[str, int] | None:
    return None if next_draw is None else {"train": next_draw}


def held(plan: ResumePlan, status: GroupStatus) -> list[int]:
    return [group.row.draw for group in plan.held if group.row.status is status]


async def statuses(storage: Storage) -> dict[GroupStatus, int]:
    return {status: count for status, count in (await storage.counts())["train"].items() if count}


async def test_a_drawn_group_is_pending(storage: Storage) -> None:
    row = await storage.draw("train", 3, TASK, 7)
    assert row == GroupRow("train", 3, 0, TASK, 7, GroupStatus.PENDING)
    assert await storage.rollouts_of("train", 3) == ()
    assert await statuses(storage) == {GroupStatus.PENDING: 1}


async def test_rollouts_come_back_as_they_were(storage: Storage) -> None:
    row = await storage.draw("train", 0, TASK, 0)
    put = [make_failure(0, 1), make_rollout(0, 0)]
    for rollout in put:
        await storage.put(row, rollout)
    stored = await storage.rollouts_of("train", 0)
    assert [facts_of(rollout) for rollout in stored] == [facts_of(put[1]), facts_of(put[0])]


async def test_only_the_latest_attempt_of_a_member_counts(storage: Storage) -> None:
    row = await storage.draw("train", 0, TASK, 0)
    for attempt in (2, 0, 1):
        await storage.put(row, make_rollout(0, 0, attempt))
    assert [rollout.key.attempt for rollout in await storage.rollouts_of("train", 0)] == [2]


async def test_a_live_draw_cannot_be_drawn_again(storage: Storage) -> None:
    await storage.draw("train", 0, TASK, 0)
    with pytest.raises(RunError, match="draw 0 of task set 'train' was already made and is pending"):
        await storage.draw("train", 0, TASK, 0)
    assert await statuses(storage) == {GroupStatus.PENDING: 1}


async def test_a_rollout_is_never_overwritten(storage: Storage) -> None:
    row = await storage.draw("train", 0, TASK, 0)
    await storage.put(row, make_rollout(0, 0))
    with pytest.raises(RunError, match="train/000000/00/0 is stored already"):
        await storage.put(row, make_failure(0, 0))
    assert [facts_of(r) for r in await storage.rollouts_of("train", 0)] == [facts_of(make_rollout(0, 0))]


async def test_a_rollout_needs_its_own_group(storage: Storage) -> None:
    row = await storage.draw("train", 0, TASK, 0)
    with pytest.raises(RunError, match="does not belong to draw 0"):
        await storage.put(row, make_rollout(1, 0))
    with pytest.raises(RunError, match="never recorded"):
        await storage.put(replace(row, round=1), make_rollout(0, 0))
    with pytest.raises(RunError, match="never recorded"):
        await storage.rollouts_of("train", 9)


async def test_marking_is_all_or_nothing(storage: Storage) -> None:
    await storage.draw("train", 0, TASK, 0)
    with pytest.raises(RunError, match="draw 5 of task set 'train' was never recorded"):
        await storage.mark([("train", 0), ("train", 5)], GroupStatus.FAILED)
    assert await statuses(storage) == {GroupStatus.PENDING: 1}


@pytest.mark.parametrize("status", [GroupStatus.PENDING, GroupStatus.CONSUMED, GroupStatus.ROLLED_BACK])
async def test_some_statuses_come_with_more_than_a_mark(storage: Storage, status: GroupStatus) -> None:
    await storage.draw("train", 0, TASK, 0)
    with pytest.raises(RunError, match=f"cannot be marked {status}"):
        await storage.mark([("train", 0)], status)


async def test_consuming_is_all_or_nothing(storage: Storage) -> None:
    await complete(storage, 0)
    with pytest.raises(RunError, match="draw 5 of task set 'train' was never recorded"):
        await storage.consume([group_of(make_rollout(0)), group_of(make_rollout(5))], 1)
    assert await statuses(storage) == {GroupStatus.COMPLETED: 1}


async def test_a_partial_rollout_is_replaced_by_the_next_put(storage: Storage) -> None:
    row = await storage.draw("train", 0, TASK, 0)
    for rollout in (make_partial(version=0), make_partial(version=0, size=2), make_rollout(0, version=1)):
        await storage.put(row, rollout)
        (stored,) = await storage.rollouts_of("train", 0)
        assert facts_of(stored) == facts_of(rollout)
    with pytest.raises(RunError, match="train/000000/00/0 is stored already"):
        await storage.put(row, make_partial())


async def test_a_partial_rollout_cannot_be_judged(storage: Storage) -> None:
    row = await storage.draw("train", 0, TASK, 0)
    await storage.put(row, make_partial())
    with pytest.raises(RunError, match="train/000000/00/0 was interrupted and is not whole"):
        await storage.put_rewards(row, [make_rollout(0)])


async def test_an_aborted_group_goes_on_with_what_it_has(storage: Storage) -> None:
    row = await storage.draw("train", 0, TASK, 0)
    await storage.put(row, make_partial(0, 1))
    await storage.mark([("train", 0)], GroupStatus.ABORTED)
    assert await storage.take_up(row, 3) == row
    assert await statuses(storage) == {GroupStatus.PENDING: 1}
    assert [rollout.is_partial for rollout in await storage.rollouts_of("train", 0)] == [True]


async def test_members_made_before_an_expiry_no_longer_count(storage: Storage) -> None:
    await complete(storage, 0)
    await storage.mark([("train", 0)], GroupStatus.EXPIRED)
    assert await storage.rollouts_of("train", 0) == ()
    (group,) = (await resume(storage, 5)).held
    assert (group.row.status, group.row.expiries) == (GroupStatus.EXPIRED, 1)
    assert [(member.attempt, member.expiries) for member in group.members] == [(0, 0), (0, 0)]

    row = await storage.take_up(group.row, 5)
    await storage.put(row, make_rollout(0, 1, 1, version=5))
    assert [rollout.key.attempt for rollout in await storage.rollouts_of("train", 0)] == [1]
    (group,) = (await resume(storage, 5)).held
    assert (group.row.status, group.row.expiries) == (GroupStatus.ABORTED, 1)
    assert [(member.attempt, member.expiries) for member in group.members] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("status", [GroupStatus.ABORTED, GroupStatus.EXPIRED])
async def test_interrupted_groups_survive_a_resume_unless_their_weights_are_lost(
    storage: Storage, status: GroupStatus
) -> None:
    for draw, version in ((0, 1), (1, 2)):
        await storage.put(await storage.draw("train", draw, TASK, 1), make_rollout(draw, 0, version=version))
        await storage.mark([("train", draw)], status)
    plan = await resume(storage, 1)
    assert (held(plan, status), plan.redraw) == ([0], (1,))


async def test_what_json_cannot_hold_is_refused_at_once(storage: Storage) -> None:
    with pytest.raises(DataError):
        await storage.draw("train", 0, Task.ask("a", "?", truth=object()), 0)
    assert await storage.counts() == {}


async def test_an_empty_ledger_starts_at_draw_zero(storage: Storage) -> None:
    plan = await resume(storage, 0)
    assert plan == ResumePlan(held=(), redraw=(), next_draw=0, filtered=0)


async def test_resume_undoes_what_came_after_the_checkpoint(storage: Storage) -> None:
    await consume(storage, 0, step=1)
    await consume(storage, 1, step=2)  # sampled by version 1, trained after the checkpoint
    await consume(storage, 2, step=3)  # sampled by version 2, which is lost
    await complete(storage, 3, version=1)
    pending = await storage.draw("train", 4, TASK, 1)
    await storage.put(pending, make_rollout(4, 1, version=1))
    await storage.draw("train", 5, TASK, 2)
    for draw, version in ((6, 2), (7, 1)):
        await storage.draw("train", draw, TASK, version)
        await storage.mark([("train", draw)], GroupStatus.FAILED)

    plan = await resume(storage, 1)

    assert held(plan, GroupStatus.ABORTED) == [4], "who is not finished goes on, member by member"
    assert plan.held[2].members == (MemberRow(1, 0, first=0, expiries=0, oldest=1, is_scored=True),)
    assert [rollout.key.member for rollout in await storage.rollouts_of("train", 4)] == [1]
    assert held(plan, GroupStatus.COMPLETED) == [1, 3]
    assert [facts_of(r) for r in await storage.rollouts_of("train", 1)] == [
        facts_of(make_rollout(1, m, version=1)) for m in (0, 1)
    ]
    assert (plan.redraw, plan.next_draw) == ((2, 5, 6), 8), "also what lost weights failed at is drawn again"
    assert await statuses(storage) == {
        GroupStatus.CONSUMED: 1,
        GroupStatus.COMPLETED: 2,
        GroupStatus.ABORTED: 1,
        GroupStatus.ROLLED_BACK: 3,
        GroupStatus.FAILED: 1,
    }


async def test_filtered_groups_stay_filtered_unless_their_weights_are_lost(storage: Storage) -> None:
    await consume(storage, 0, step=1)
    for draw, version in ((1, 1), (2, 2), (3, 1)):
        await complete(storage, draw, version=version)
        await storage.mark([("train", draw)], GroupStatus.FILTERED)

    plan = await resume(storage, 1)

    assert (plan.held, plan.redraw, plan.next_draw) == ((), (2,), 4)
    assert plan.filtered == 2, "a group that is rolled back is no longer filtered"
    assert await statuses(storage) == {
        GroupStatus.CONSUMED: 1,
        GroupStatus.FILTERED: 2,
        GroupStatus.ROLLED_BACK: 1,
    }


async def test_only_groups_filtered_after_the_last_kept_one_are_in_a_row(storage: Storage) -> None:
    history = (GroupStatus.FILTERED, None, GroupStatus.FILTERED, GroupStatus.FAILED)
    for draw, status in enumerate(history):
        await complete(storage, draw)
        if status is not None:
            await storage.mark([("train", draw)], status)
    assert (await resume(storage, 0)).filtered == 1
    assert (await resume(storage, 0, 1)).filtered == 1, "as it stood at draw 1"
    assert (await resume(storage, 0, 0)).filtered == 0


async def test_a_redraw_is_a_new_round_and_the_old_one_stays(storage: Storage) -> None:
    await consume(storage, 0, step=2)
    await resume(storage, 0)
    again = await resume(storage, 0)
    assert again.redraw == (0,), "a redraw that did not happen yet is still to be made"

    row = await storage.draw("train", 0, TASK, 0)
    assert row.round == 1
    assert await storage.rollouts_of("train", 0) == ()
    await storage.put(row, make_rollout(0, 0))
    await storage.mark([("train", 0)], GroupStatus.FAILED)
    assert await statuses(storage) == {GroupStatus.ROLLED_BACK: 1, GroupStatus.FAILED: 1}
    assert (await resume(storage, 0)).redraw == ()


async def test_a_held_group_says_of_each_member_how_old_it_is_and_whether_it_will_be_trained(storage: Storage) -> None:
    row = await storage.draw("train", 0, TASK, 0)
    unlucky = Failed(FailureCause.JUDGE, "ValueError", "no number")
    await storage.put(row, make_rollout(0, 0, reward=unlucky))
    await storage.put(row, make_failure(0, 1))
    await storage.put(row, make_rollout(0, 1, 1, version=1))
    await storage.put(row, make_failure(0, 2))
    await storage.mark([("train", 0)], GroupStatus.COMPLETED)
    (group,) = (await resume(storage, 1)).held
    assert group.members == (
        MemberRow(0, 0, first=0, expiries=0, oldest=0, is_scored=False),
        MemberRow(1, 1, first=0, expiries=0, oldest=1, is_scored=True),
        MemberRow(2, 0, first=0, expiries=0, oldest=None, is_scored=False),
    )


async def test_a_group_finished_by_lost_weights_is_rolled_back(storage: Storage) -> None:
    """Drawn at version 1, but one member was sampled by version 3: that member cannot be trained at step 3."""
    row = await storage.draw("train", 0, TASK, 1)
    await storage.put(row, make_rollout(0, 0, version=1))
    await storage.put(row, make_rollout(0, 1, version=3))
    await storage.mark([("train", 0)], GroupStatus.COMPLETED)
    assert (await resume(storage, 2)).redraw == (0,)


async def test_a_deterministic_resume_discards_all_later_draws(storage: Storage) -> None:
    await consume(storage, 0, step=1)
    await consume(storage, 1, step=2)
    await complete(storage, 2, version=1)
    await storage.draw("train", 3, TASK, 1)
    await storage.draw("train", 4, TASK, 1)
    await storage.mark([("train", 4)], GroupStatus.FAILED)

    plan = await resume(storage, 1, 1)

    assert plan == ResumePlan(next_draw=1)
    assert await statuses(storage) == {GroupStatus.CONSUMED: 1, GroupStatus.DISCARDED: 4}
    assert (await storage.draw("train", 1, TASK, 1)).round == 1


async def test_a_reward_comes_to_a_rollout_that_was_stored_without_one(storage: Storage) -> None:
    row = await storage.draw("train", 0, TASK, 0)
    for member in range(2):
        await storage.put(row, make_rollout(0, member, reward=Unscored()))
    judged = [make_rollout(0, member, reward=Failed(FailureCause.JUDGE, "Timeout", "slow")) for member in range(2)]
    scored = [make_rollout(0, member) for member in range(2)]
    for rollouts in (judged, scored):
        await storage.put_rewards(row, rollouts)
        assert [facts_of(rollout) for rollout in await storage.rollouts_of("train", 0)] == list(map(facts_of, rollouts))
    with pytest.raises(RunError, match=r"train/000000/00/0 has a score already"):
        await storage.put_rewards(row, scored)


async def test_rewards_are_stored_all_or_none(storage: Storage) -> None:
    row = await storage.draw("train", 0, TASK, 0)
    await storage.put(row, make_rollout(0, 0, reward=Unscored()))
    with pytest.raises(RunError, match=r"train/000000/01/0 is not stored"):
        await storage.put_rewards(row, [make_rollout(0, 0), make_rollout(0, 1)])
    (stored,) = await storage.rollouts_of("train", 0)
    assert stored.reward == Unscored()
    with pytest.raises(RunError, match="does not belong"):
        await storage.put_rewards(row, [make_rollout(1, 0)])


async def test_groups_that_failed_for_want_of_a_judge_go_on(storage: Storage) -> None:
    """Only those since the last consumed group: the others were replaced, and their weights are long gone."""
    away = Failed(FailureCause.JUDGE, "ConnectError", "down")
    for draw, reward in ((0, away), (2, away), (3, Unscored())):
        row = await storage.draw("train", draw, TASK, 1)
        await storage.put(row, make_rollout(draw, 0, version=1, reward=reward))
    await consume(storage, 1, step=2)
    row = await storage.draw("train", 4, TASK, 1)
    await storage.put(row, make_failure(4, 0))
    await storage.mark([("train", draw) for draw in (0, 2, 3, 4)], GroupStatus.FAILED)
    plan = await resume(storage, 2)
    assert held(plan, GroupStatus.ABORTED) == [2, 3]
    assert await statuses(storage) == {GroupStatus.ABORTED: 2, GroupStatus.CONSUMED: 1, GroupStatus.FAILED: 2}


async def test_task_sets_do_not_disturb_each_other(storage: Storage) -> None:
    await consume(storage, 0, step=2)
    await storage.draw("other", 0, TASK, 0)
    plan = await resume(storage, 0)
    assert plan.redraw == (0,)
    counts = await storage.counts()
    assert counts["other"][GroupStatus.ABORTED] == 1
    assert sum(counts["other"].values()) == sum(counts["train"].values()) == 1


@pytest.mark.parametrize("next_draw", [None, 0])
async def test_a_task_set_that_the_config_has_no_more_is_undone_too(storage: Storage, next_draw: int | None) -> None:
    """Its groups must not count for steps that are trained again; if it comes back, it goes on with them."""
    for draw, step in ((0, 1), (1, 2), (2, 3)):
        await storage.put(await storage.draw("gone", draw, TASK, step - 1), make_rollout(draw, task_set="gone"))
        await storage.consume([group_of(make_rollout(draw, task_set="gone"))], step)
    await storage.draw("gone", 3, TASK, 1)

    plans = await storage.resume(["train"], step=1, next_draws=_from(next_draw), policy=ON_POLICY)

    assert list(plans) == ["train"]
    assert {status: count for status, count in (await storage.counts())["gone"].items() if count} == {
        GroupStatus.CONSUMED: 1,
        GroupStatus.COMPLETED: 1,
        GroupStatus.ROLLED_BACK: 1,
        GroupStatus.ABORTED: 1,
    }


async def test_a_flush_changes_nothing_that_can_be_asked_for(storage: Storage) -> None:
    await storage.flush()
    await complete(storage, 0)
    await consume(storage, 1, step=1)
    before = await statuses(storage), [facts_of(rollout) for rollout in await storage.rollouts_of("train", 0)]
    for _ in range(2):
        await storage.flush()
    after = await statuses(storage), [facts_of(rollout) for rollout in await storage.rollouts_of("train", 0)]
    assert after == before
    await complete(storage, 2)


async def test_an_evaluation_is_stored_under_its_own_name(storage: Storage) -> None:
    with pytest.raises(RunError, match="does not belong to the evaluation of 'eval'"):
        await storage.put_eval(0, "eval", "greedy", [make_rollout(task_set="train")])
    with pytest.raises(RunError, match=r"eval/000000/00/0 is stored already"):
        await storage.put_eval(0, "eval", "greedy", [make_rollout(task_set="eval"), make_rollout(task_set="eval")])


async def test_the_evaluations_that_are_stored_are_named_until_they_are_undone(storage: Storage) -> None:
    await resume(storage, step=0)
    assert await storage.evaluations() == frozenset()
    for step in (0, 2):
        await storage.put_eval(step, "eval", "greedy", [make_rollout(task_set="eval")])
    assert await storage.evaluations() == {(0, "eval", "greedy"), (2, "eval", "greedy")}
    await resume(storage, step=1)
    assert await storage.evaluations() == {(0, "eval", "greedy")}


async def test_a_ledger_that_began_empty_at_a_checkpoint_draws_no_earlier_tasks() -> None:
    memory = MemoryStorage()
    assert (await resume(memory, step=2, next_draw=5)).next_draw == 5
    assert (await resume(memory, step=2)).next_draw == 5
    await memory.draw("train", 5, TASK, 2)
    assert (await resume(memory, step=2)).next_draw == 6


def test_keys_print_as_they_are_named_in_messages() -> None:
    assert str(RolloutKey("train", 12, 3, 1)) == "train/000012/03/1"
