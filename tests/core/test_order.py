"""Orders are permutations that the arguments alone decide."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.order import epoch_order


@given(st.integers(0, 2**40), st.integers(0, 1000), st.integers(0, 50))
def test_each_item_comes_once(seed: int, epoch: int, size: int) -> None:
    assert sorted(epoch_order(seed, epoch, size)) == list(range(size))
    assert (epoch_order(seed, epoch, size) == epoch_order(seed, epoch, size)).all()


def test_seed_and_epoch_change_the_order() -> None:
    orders = {tuple(epoch_order(seed, epoch, 20)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_the_order_is_the_same_in_every_version() -> None:
    """A run that is resumed after an upgrade must not see other tasks."""
    assert epoch_order(7, 0, 8).tolist() == [3, 6, 2, 1, 5, 4, 0, 7]
