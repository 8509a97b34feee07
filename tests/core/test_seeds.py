"""Seeds are split without collisions, and alike in every process."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.seeds import derive_seed

parts = st.lists(st.integers(0, 10) | st.sampled_from(["order", "train", "1", ""]), min_size=1, max_size=4)


def test_a_seed_is_the_same_in_every_process_and_release() -> None:
    """A resumed run must draw what the first one would have: these values are part of the format."""
    assert derive_seed(0) == 4246866556266386882
    assert derive_seed(7, "order", "addition") == 3262848996821454567


def test_neighbours_do_not_collide() -> None:
    seeds = {derive_seed(run, name, draw) for run in range(20) for name in ("a", "b") for draw in range(50)}
    assert len(seeds) == 20 * 2 * 50


@given(parts)
def test_a_seed_has_63_bits(some: list[int | str]) -> None:
    assert 0 <= derive_seed(*some) < 2**63


@given(parts, parts)
def test_other_parts_give_another_seed(some: list[int | str], others: list[int | str]) -> None:
    """A number and its text are one part: names and numbers come from different places of a run."""
    same = [str(part) for part in some] == [str(part) for part in others]
    assert (derive_seed(*some) == derive_seed(*others)) == same
