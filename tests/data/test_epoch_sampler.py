"""The sampler is a pure function of (seed, draw); an epoch is a permutation of the tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loopwright.data import EpochSampler, PythonSource
from loopwright.ports import Sampler
from loopwright.types import Task

sizes = st.integers(1, 40)
seeds = st.integers(0, 2**40)
epochs = st.integers(0, 1000)


def tasks(size: int) -> PythonSource:
    return PythonSource(tuple(Task.ask(str(index), "?") for index in range(size)))


def epoch_of(sampler: Sampler, epoch: int) -> list[str]:
    return [sampler.task(epoch * len(sampler) + place).id for place in range(len(sampler))]


@given(sizes, seeds, epochs, st.booleans())
def test_each_epoch_holds_every_task_once(size, seed, epoch, shuffle):
    order = epoch_of(EpochSampler(tasks(size), seed, shuffle), epoch)
    assert sorted(order, key=int) == [str(index) for index in range(size)]


@given(sizes, seeds, st.lists(st.integers(0, 500), min_size=1, max_size=20))
def test_a_draw_depends_on_nothing_but_itself(size, seed, draws):
    used = EpochSampler(tasks(size), seed)
    assert [used.task(draw) for draw in draws] == [EpochSampler(tasks(size), seed).task(draw) for draw in draws]


# Two of 30! orders: a chance collision is out of the question.
@given(seeds, epochs)
def test_epochs_differ_and_seeds_differ(seed, epoch):
    sampler = EpochSampler(tasks(30), seed)
    assert epoch_of(sampler, epoch) != epoch_of(sampler, epoch + 1)
    assert epoch_of(sampler, epoch) != epoch_of(EpochSampler(tasks(30), seed + 1), epoch)


@given(sizes, seeds, epochs)
def test_without_shuffling_the_order_is_that_of_the_data(size, seed, epoch):
    assert epoch_of(EpochSampler(tasks(size), seed, shuffle=False), epoch) == [str(index) for index in range(size)]


def test_the_order_is_the_same_in_every_release():
    """A resumed run must draw what the interrupted one would have drawn."""
    assert "".join(epoch_of(EpochSampler(tasks(8), seed=0), 1)) == "41062537"
