"""With `stale: wait` nothing is ever too old, however long answers take and whatever is done at an update."""

from __future__ import annotations

from random import Random

import pytest
from async_house import Learning, async_house

from loopwright.testing import run_virtually
from loopwright.types import GenerateRequest, PauseMode, Stale

STEPS = 25


@pytest.mark.parametrize("in_flight", PauseMode)
@pytest.mark.parametrize(("staleness", "sync_interval"), [(1, 1), (3, 1), (1, 2)])
def test_nothing_is_too_old_when_it_is_trained(staleness: int, sync_interval: int, in_flight: PauseMode) -> None:
    for seed in range(6):
        run_virtually(learn(seed, staleness, sync_interval, in_flight))


async def learn(seed: int, staleness: int, sync_interval: int, in_flight: PauseMode) -> None:
    def seconds(request: GenerateRequest) -> float:
        rollout = request.id.rsplit("/", 1)[0]
        return Random(f"{seed}/{rollout}").choice([0.5, 1.0, 2.0, 8.0, 12.0])

    house = async_house(
        staleness=staleness, sync_interval=sync_interval, groups=2, members=1, stale=Stale.WAIT, seconds=seconds
    )
    learning = Learning(house, house.producer(), seconds=0.5, sync_interval=sync_interval, in_flight=in_flight)
    await learning.run(STEPS)
    assert len(learning.batches) == STEPS
    assert [batch.metrics["staleness/masked"] for batch in learning.batches] == [0.0] * STEPS
