"""Scenarios of a disaggregated run whose filter drops groups: every wait for a batch has an end (R4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest
from async_house import Learning, async_house
from house import House, Says, task_set

from loopwright.errors import BudgetError
from loopwright.testing import run_virtually
from loopwright.types import GroupStatus

T = TypeVar("T")

NEVER = Says(False)


async def soon(work: Awaitable[T]) -> T:
    """A wait without an end fails the test."""
    return await asyncio.wait_for(work, 1000)


@pytest.mark.parametrize("concurrency", [1, 2, 100])
def test_a_filter_that_drops_everything_ends_the_run(concurrency: int) -> None:
    async def main() -> None:
        house = async_house(
            groups=2,
            members=1,
            filter_budget=3,
            concurrency=concurrency,
            task_sets=[task_set(filter=NEVER, resumable=True)],
        )
        with pytest.raises(BudgetError, match=r"step 1: there is nothing to train on.*filtered by the test"):
            await soon(Learning(house, house.producer()).run(1))
        assert GroupStatus.PENDING not in await house.counts()

    run_virtually(main())


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("concurrency", [1, 3, 100])
def test_a_filter_that_drops_one_task_set_leaves_the_other_one_to_train(staleness: int, concurrency: int) -> None:
    """When the budget is spent, each step asks for that task set's share once."""

    async def main() -> tuple[House, Learning]:
        sets = [task_set("a", resumable=True), task_set("b", filter=NEVER, resumable=True)]
        house = async_house(
            staleness=staleness, groups=4, members=1, filter_budget=3, concurrency=concurrency, task_sets=sets
        )
        learning = Learning(house, house.producer())
        await soon(learning.run(6))
        return house, learning

    house, learning = run_virtually(main())
    assert [[group.task_set for group in batch.groups] for batch in learning.batches] == [["a", "a"]] * 6
    dropped = run_virtually(house.counts("b"))[GroupStatus.FILTERED]
    # Before the budget was spent: what these weights may feed. Afterwards two a step, the one being made among them.
    assert 3 <= dropped <= 2 * (staleness + 1) + 2 * 7
