"""Scenarios of production, by name: counters, gates and what is done with expired groups."""

from __future__ import annotations

import asyncio

from async_house import Learning, async_house, by_key, take_turns
from house import House, task_set
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.admission import tail_of, window_limit
from loopwright.core.progress import ProduceProgress
from loopwright.core.staleness import is_too_old
from loopwright.errors import EngineError
from loopwright.produce import AgentLoopManager, ManagerState
from loopwright.testing import ScriptedEngine, run_virtually
from loopwright.types import GenerateRequest, Group, GroupStatus, PauseMode, Stale


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.integers(1, 5), st.integers(0, 40))
def test_targets_accumulate_once(asked: list[int], groups: int, begun: int) -> None:
    """However often, and in whatever order, the target of a step is asked for."""
    progress = ProduceProgress({"a": 2.0, "b": 1.0}, groups, step=begun)
    for ahead in asked:
        progress.target_upto(begun + ahead)
    assert progress.producer_future_step == begun + max(asked)
    target = progress.target_upto(begun + max(asked))
    assert sum(target.values()) == groups * max(asked)
    once = ProduceProgress({"a": 2.0, "b": 1.0}, groups, step=begun)
    assert dict(once.target_upto(begun + max(asked))) == dict(target)


def test_an_empty_batch_adds_nothing_to_the_target() -> None:
    async def main() -> None:
        house = async_house(staleness=0, groups=2)
        manager = house.producer()
        learning = Learning(house, manager, sync_interval=100)
        await learning.run(3)
        assert learning.empty == [2, 3], "version 0 may feed step 1 alone"
        assert manager.next_draws == {"math": 6}

    run_virtually(main())


def test_newer_weights_are_wanted_when_slots_are_empty_for_want_of_them() -> None:
    async def main(last_step: int | None, concurrency: int = 100) -> list[bool]:
        more = {"last_step": last_step}
        house = async_house(staleness=0, sync_interval=3, groups=2, members=1, concurrency=concurrency, more=more)
        manager = house.producer()
        learning = Learning(house, manager, seconds=0.1, sync_interval=3)
        wanted = []

        async def watch() -> None:
            for _ in range(3):
                await asyncio.sleep(0.8)
                wanted.append(manager.wants_weights)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch())
            await learning.run(3)
        return wanted

    assert run_virtually(main(None))[0], "all three steps are being made, and none may start beyond"
    assert not any(run_virtually(main(last_step=3))), "nothing is made beyond the last step"
    assert not run_virtually(main(None, concurrency=2))[0], "there is no slot for more"


@given(st.data())
def test_counters_are_absolute_and_monotone(data: st.DataObject) -> None:
    """What a step goes without is not owed for ever, and what was taken stays counted."""
    progress = ProduceProgress({"a": 1.0, "b": 3.0}, 4)
    for step in range(1, 8):
        wanted = progress.wanted(step)
        before = {name: progress.available(name, count) for name, count in wanted.items()}
        taken = {name: data.draw(st.integers(0, count)) for name, count in wanted.items()}
        progress.take(taken)
        assert progress.next_consumer_step == step + 1
        for name in wanted:
            assert progress.available(name, 0) == before[name] == progress.target_upto(step)[name]
        assert progress.wanted(step) == {"a": 0, "b": 0}


def test_a_smaller_step_lowers_its_own_target_only() -> None:
    progress = ProduceProgress({"a": 1.0}, 4)
    progress.resize(2)
    assert progress.wanted(1) == {"a": 2}
    progress.resize(3)
    assert progress.wanted(1) == {"a": 3}
    progress.take({"a": 3})
    assert progress.wanted(2) == {"a": 4}


def test_taking_opens_no_false_deficit() -> None:
    """The gate of version 0 is as full after a batch was taken as before: nothing starts until newer weights come."""

    async def main() -> None:
        house = async_house(staleness=1, groups=3, members=1)
        manager = house.producer()
        asyncio.get_running_loop().create_task(manager.produce_loop())
        await manager.continue_(0)
        await asyncio.sleep(5)
        assert manager.next_draws == {"math": 6}, "two steps of three"
        for step in (1, 2):
            await manager.take(step)
            await asyncio.sleep(5)
            assert manager.next_draws == {"math": 6}
        await manager.shutdown()

    run_virtually(main())


def _trained(learning: Learning) -> list[Group]:
    return [group for batch in learning.batches for group in batch.groups]


def _slow_house(stale: Stale) -> House:
    """The first attempt at draw 1 takes 6 seconds, and a step one."""
    return async_house(staleness=1, groups=2, members=1, stale=stale, seconds=by_key({"math/000001/00/0": 6.0}, 0.5))


def test_expiry_refills_or_masks() -> None:
    async def run(house: House) -> tuple[AgentLoopManager, Learning]:
        manager = house.producer()
        learning = Learning(house, manager, in_flight=PauseMode.KEEP)
        await learning.run(12)
        return manager, learning

    masked, learning = run_virtually(run(_slow_house(Stale.MASK)))
    late = next(group for group in _trained(learning) if group.draw == 1)
    (chain,) = late.rollouts[0].episode.chains  # type: ignore[union-attr]
    step = next(n for n, batch in enumerate(learning.batches, 1) if late in batch.groups)
    assert step > 2, "it came too late for the steps of its first tokens"
    kept = [int(v) for v, m in zip(chain.versions, chain.mask, strict=True) if m]
    assert not any(is_too_old(version, step, 2) for version in kept)
    assert masked._buffer.masked_tokens > 0
    assert late.rewards == (1.0,), "it is trained all the same: nothing is dropped for being slow (R5)"

    _, retried = run_virtually(run(_slow_house(Stale.RETRY)))
    again = next(group for group in _trained(retried) if group.draw == 1)
    assert again.rollouts[0].key.attempt >= 1, "made again, as another attempt of the same group"
    assert len(_trained(retried)) == 24, "and every step was full"

    waiting, waited = run_virtually(run(_slow_house(Stale.WAIT)))
    assert 1 in [group.draw for group in waited.batches[1].groups] + [group.draw for group in waited.batches[0].groups]
    assert waiting._buffer.masked_tokens == 0


def test_attempts_of_an_expired_group_do_not_count_against_its_next_life() -> None:
    """Made again and interrupted, a member that then loses its engine is tried again as often as any other."""
    asked = 0

    async def main() -> None:
        seconds = by_key({"math/000001/00/0": 6.0, "math/000001/00/1": 4.0}, 0.5)

        def lost_once(request: GenerateRequest) -> float:
            nonlocal asked
            asked += request.id.startswith("math/000001/00/1")
            if asked == 2 and request.id.startswith("math/000001/00/1"):
                raise EngineError("lost", remedy="none: the test asked for it")
            return float(seconds(request))

        house = async_house(staleness=1, groups=2, members=1, stale=Stale.RETRY, seconds=lost_once)
        learning = Learning(house, house.producer(), in_flight=PauseMode.KEEP)
        running = asyncio.create_task(learning.run(30))
        while not asked:
            await asyncio.sleep(0.1)
        learning.in_flight = PauseMode.ABORT
        await running
        assert GroupStatus.FAILED not in await house.counts()
        again = next(group for group in _trained(learning) if group.draw == 1)
        assert again.rollouts[0].key.attempt == 2

    run_virtually(main())


def test_the_gate_keeps_slots_busy_through_a_tail() -> None:
    """While one rollout of step 1 takes its time, the slots work for the next steps."""

    async def main() -> None:
        seconds = by_key({"math/000000/00": 20.0}, 1.0)
        house = async_house(staleness=4, groups=4, members=2, concurrency=4, seconds=seconds)
        manager = house.producer()
        learning = Learning(house, manager, seconds=0.0, in_flight=PauseMode.KEEP)
        busy = []

        async def watch() -> None:
            for second in range(9):
                await asyncio.sleep(second + 0.5 - asyncio.get_running_loop().time())
                busy.append(manager._scheduler.slots.in_use)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch())
            await learning.run(4)
        assert busy == [4] * 9
        assert learning.batches[0].metrics["slots/idle"] < 0.05
        assert 0 not in [group.draw for batch in learning.batches[:3] for group in batch.groups]

    run_virtually(main())


@given(st.integers(0, 50), st.integers(1, 20), st.integers(1, 30))
def test_a_tail_step_needs_its_number(expired: int, batch: int, at_least: int) -> None:
    share = tail_of(expired, batch, at_least)
    assert share == (min(expired, batch) if expired >= at_least else 0)


def test_oversampling_rounds_up_and_ends_at_the_horizon() -> None:
    assert [window_limit(8, 8, share, ahead=16) for share in (0.0, 0.1, 0.5, 1.0, 1.1)] == [8, 9, 12, 16, 16]


def test_tail_batch() -> None:
    """Expired groups wait until there are two of them; then a step begins with them alone."""

    async def main(tail_batch: object) -> list[tuple[float, str]]:
        slow = {f"math/{draw:06d}/00/0": 30.0 for draw in (1, 3)}
        house = async_house(
            staleness=1,
            groups=2,
            members=1,
            stale=Stale.RETRY,
            seconds=by_key({**slow, "math/000003/00/0": 34.0}, 1.0),
            more={"tail_batch": tail_batch},
        )
        manager = house.producer()
        learning = Learning(house, manager, in_flight=PauseMode.KEEP)
        await learning.run(40)
        asked = [request.id.rsplit("/", 1)[0] for request in house.engine.requests]
        return [(place, key) for place, key in enumerate(asked) if key.endswith("/1")]

    immediate = run_virtually(main("immediate"))
    assert [key for _, key in immediate] == ["math/000001/00/1", "math/000003/00/1"]
    assert immediate[1][0] - immediate[0][0] > 1, "each is mixed in when it expires"
    together = run_virtually(main(2))
    assert [key for _, key in together] == ["math/000001/00/1", "math/000003/00/1"]
    assert together[1][0] - together[0][0] == 1, "nothing starts between them"


def test_a_colocated_window_starts_more_and_keeps_the_rest_for_the_next_step() -> None:
    async def main(in_flight: PauseMode) -> tuple[House, AgentLoopManager, float]:
        house = async_house(
            staleness=2,
            groups=4,
            members=1,
            seconds=by_key({"math/000000": 50.0}, 1.0),
            more={"over_sample": 0.5, "in_flight": in_flight},
        )
        manager = house.producer()
        first = await manager.produce_batch(1, 0)
        seconds = asyncio.get_running_loop().time()
        assert manager.next_draws == {"math": 6}, "four and half of them more"
        assert manager.state is ManagerState.UPDATING
        await manager.consume(first.groups, 1)
        await house.engine.pause()
        await house.engine.load(1)
        await house.engine.resume()
        second = await manager.produce_batch(2, 1)
        assert [group.draw for group in first.groups + second.groups][:4] == (
            [1, 2, 3, 4] if in_flight is PauseMode.ABORT else [0, 1, 2, 3]
        )
        await manager.shutdown()
        return house, manager, seconds

    house, _, seconds = run_virtually(main(PauseMode.ABORT))
    assert seconds < 10, "the slowest is not waited for"
    assert run_virtually(house.counts())[GroupStatus.CONSUMED] == 4
    _, _, seconds = run_virtually(main(PauseMode.DRAIN))
    assert seconds > 40


def test_a_colocated_tail_step_goes_on_with_what_was_interrupted() -> None:
    """Groups that expired are to be made alone, but the window is full of groups that were interrupted."""

    async def main() -> None:
        house = async_house(
            staleness=1,
            groups=2,
            members=1,
            stale=Stale.RETRY,
            seconds=lambda request: 1.0 if int(request.id.split("/")[1]) % 2 == 0 else 3.0,
            more={"over_sample": 1.0, "in_flight": PauseMode.ABORT, "tail_batch": 1},
        )
        batches = await take_turns(house, house.producer(), 20)
        assert [len(batch.groups) for batch in batches] == [2] * 20
        again = [request for request in house.engine.requests if request.id.split("/")[3] == "1"]
        assert again, "some expired"

    run_virtually(main())


def test_groups_that_are_waited_for_and_interrupted_keep_their_places_and_go_on() -> None:
    """`stale: wait`: updates interrupt groups before they are through, and the gate has room for no others."""

    async def main(staleness: int) -> None:
        house = async_house(
            staleness=staleness, groups=2, members=2, stale=Stale.WAIT, engine=ScriptedEngine(["12345"], seconds=slow)
        )
        manager = house.producer()
        learning = Learning(house, manager)
        running = asyncio.create_task(learning.run(8))
        most = 0
        while not running.done():
            await asyncio.sleep(0.7)
            counts = await house.counts()
            unfinished = [counts.get(status, 0) for status in (GroupStatus.PENDING, GroupStatus.ABORTED)]
            most = max(most, sum(unfinished) + counts.get(GroupStatus.COMPLETED, 0))
        await running
        assert [len(batch.groups) for batch in learning.batches] == [2] * 8
        assert most <= 2 * (staleness + 1), "interrupted groups keep their places in the gate"
        assert manager._buffer.masked_tokens == 0
        assert [request for request in house.engine.requests if request.sampled_before], "some were interrupted"

    def slow(request: GenerateRequest) -> float:
        return 2.0 + int(request.id.split("/")[1]) % 3

    for staleness in (1, 2):
        run_virtually(main(staleness))


def test_task_sets_take_turns() -> None:
    async def main() -> None:
        sets = [task_set("a", resumable=True), task_set("b", resumable=True)]
        house = async_house(staleness=3, groups=4, members=1, concurrency=1, task_sets=sets)
        await Learning(house, house.producer()).run(3)
        asked = [request.id.split("/")[0] for request in house.engine.requests[:8]]
        assert asked == ["a", "b"] * 4

    run_virtually(main())
