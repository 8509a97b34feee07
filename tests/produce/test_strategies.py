"""Strategies decide which group comes next: within the limit, in retry order, and without changing anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loopwright.produce.strategies import AsyncStrategy, GroupSource, ProduceContext, SyncStrategy

EMPTY = ProduceContext(
    step=1,
    target=4,
    batch=4,
    ahead=8,
    takes_turns=False,
    available=0,
    pending=0,
    aborted=0,
    expired=0,
    slot_is_free=True,
    may_look=True,
)


@pytest.mark.parametrize(
    ("changes", "source"),
    [
        ({}, GroupSource.NEW),
        ({"slot_is_free": False}, None),
        ({"slot_is_free": False, "aborted": 1}, None),
        ({"expired": 1, "aborted": 1}, GroupSource.EXPIRED),
        ({"aborted": 1}, GroupSource.ABORTED),
        ({"pending": 8}, None),
        ({"available": 4, "pending": 4}, None),
        ({"pending": 7, "aborted": 1, "expired": 1}, GroupSource.ABORTED),
        ({"aborted": 8, "expired": 1}, GroupSource.ABORTED),
        ({"may_look": False}, None),
        ({"may_look": False, "expired": 1}, GroupSource.EXPIRED),
        ({"takes_turns": True}, GroupSource.NEW),
        ({"takes_turns": True, "pending": 4}, GroupSource.NEW),
        ({"takes_turns": True, "pending": 6}, None),
        ({"takes_turns": True, "pending": 4, "ahead": 5}, GroupSource.NEW),
        ({"takes_turns": True, "pending": 5, "ahead": 5}, None),
    ],
)
def test_an_async_strategy(changes: dict[str, object], source: GroupSource | None) -> None:
    """What was interrupted was admitted already: it goes on whatever the limit says, and keeps its place in it."""
    strategy, context = AsyncStrategy(over_sample=0.5), replace(EMPTY, **changes)  # type: ignore[arg-type]
    assert [strategy.choose(context) for _ in range(2)] == [source, source], "asking changes nothing"


@pytest.mark.parametrize(
    ("changes", "source"),
    [
        ({"pending": 7}, GroupSource.NEW),
        ({"pending": 8}, None),
        ({"aborted": 8}, GroupSource.ABORTED),
        ({"takes_turns": True}, GroupSource.NEW),
        ({"takes_turns": True, "pending": 4}, None),
        ({"takes_turns": True, "aborted": 4}, GroupSource.ABORTED),
    ],
)
def test_a_sync_strategy_makes_what_the_present_weights_are_for(
    changes: dict[str, object], source: GroupSource | None
) -> None:
    assert SyncStrategy().choose(replace(EMPTY, **changes)) is source  # type: ignore[arg-type]


def test_a_tail_step_is_made_of_expired_groups_without_oversampling() -> None:
    strategy = AsyncStrategy(over_sample=1.0, tail_batch=3)
    few = replace(EMPTY, takes_turns=True, expired=2, aborted=1)
    strategy.begin(few)
    assert strategy.choose(few) is GroupSource.ABORTED, "they wait for a third one"
    assert strategy.choose(replace(few, aborted=0, pending=7)) is GroupSource.NEW
    enough = replace(few, expired=6)
    strategy.begin(enough)
    for expired in (6, 5, 4, 3):
        assert strategy.choose(replace(enough, expired=expired)) is GroupSource.EXPIRED
        strategy.started(GroupSource.EXPIRED)
    assert strategy.choose(replace(enough, expired=2)) is GroupSource.ABORTED, "a step has four groups"
    strategy.begin(enough)
    full = replace(enough, aborted=1, pending=3)
    assert strategy.choose(full) is GroupSource.ABORTED, "what was interrupted needs no room"
    assert strategy.choose(replace(full, slot_is_free=False)) is None, "but a slot"
    assert strategy.choose(replace(full, aborted=0, pending=4)) is None
    for _ in range(4):
        strategy.started(GroupSource.EXPIRED)
    assert strategy.choose(replace(enough, expired=2, aborted=0, pending=4)) is None, "and no more are made in it"
    strategy.begin(replace(enough, expired=2))
    assert strategy.choose(replace(enough, expired=2, aborted=0, pending=4)) is GroupSource.NEW
