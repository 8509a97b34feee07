"""With `stale: wait` nothing is ever too old, however long answers take, however rare a task set is, and whatever is
done at an update: beside a trainer, and in turns with it."""

from __future__ import annotations

from random import Random

from async_house import Learning, async_house, take_turns
from house import House, task_set
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.testing import run_virtually
from loopwright.types import GenerateRequest, PauseMode, Stale

STEPS = 20

worlds = {
    "seed": st.integers(0, 1000),
    "weights": st.lists(st.sampled_from([0.05, 0.3, 1.0, 9.0]), min_size=1, max_size=3),
    "staleness": st.integers(0, 3),
    "groups": st.integers(1, 4),
}


def house_of(seed: int, weights: list[float], groups: int, **more: object) -> House:
    def seconds(request: GenerateRequest) -> float:
        rollout = request.id.rsplit("/", 1)[0]
        return Random(f"{seed}/{rollout}").choice([0.5, 1.0, 2.0, 8.0, 12.0])

    sets = [task_set(f"set{place}", resumable=True, weight=weight) for place, weight in enumerate(weights)]
    return async_house(groups=groups, members=1, stale=Stale.WAIT, seconds=seconds, task_sets=sets, **more)  # type: ignore[arg-type]


@settings(max_examples=8, deadline=None)
@given(**worlds, sync_interval=st.integers(1, 3), in_flight=st.sampled_from(PauseMode))
def test_beside_a_trainer(
    seed: int, weights: list[float], staleness: int, groups: int, sync_interval: int, in_flight: PauseMode
) -> None:
    async def main() -> None:
        house = house_of(seed, weights, groups, staleness=staleness, sync_interval=sync_interval)
        learning = Learning(house, house.producer(), seconds=0.5, sync_interval=sync_interval, in_flight=in_flight)
        await learning.run(STEPS)
        assert [len(batch.groups) for batch in learning.batches] == [groups] * STEPS
        assert [batch.metrics["staleness/masked"] for batch in learning.batches] == [0.0] * STEPS

    run_virtually(main())


@settings(max_examples=8, deadline=None)
@given(
    **worlds,
    over_sample=st.sampled_from([0.0, 0.5, 1.0, 4.0]),
    in_flight=st.sampled_from([PauseMode.DRAIN, PauseMode.ABORT]),
)
def test_in_turns(
    seed: int, weights: list[float], staleness: int, groups: int, over_sample: float, in_flight: PauseMode
) -> None:
    async def main() -> None:
        more = {"over_sample": over_sample, "in_flight": in_flight}
        house = house_of(seed, weights, groups, staleness=staleness, more=more)
        batches = await take_turns(house, house.producer(), STEPS)
        assert [len(batch.groups) for batch in batches] == [groups] * STEPS
        assert [batch.metrics["staleness/masked"] for batch in batches] == [0.0] * STEPS

    run_virtually(main())
