"""How many rollouts fit into the engines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.capacity import USUAL_SEQUENCES, rollouts_in_flight
from loopwright.types import EngineCapacity

LIMITS = st.none() | st.integers(0, 10**7)
CAPACITIES = st.builds(EngineCapacity, LIMITS, LIMITS)


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        (EngineCapacity(kv_tokens=303_104), 37),
        (EngineCapacity(sequences=16), 16),
        (EngineCapacity(kv_tokens=303_104, sequences=16), 16),
        (EngineCapacity(kv_tokens=303_104, sequences=256), 37),
        (EngineCapacity(kv_tokens=8_191), 1),
        (EngineCapacity(), USUAL_SEQUENCES),
    ],
)
def test_the_smaller_limit_of_an_engine_counts(capacity: EngineCapacity, expected: int) -> None:
    assert rollouts_in_flight([capacity], 8192) == expected


def test_a_pool_holds_what_its_engines_hold() -> None:
    engines = [EngineCapacity(kv_tokens=100_000), EngineCapacity(kv_tokens=9_999), EngineCapacity(sequences=7)]
    assert rollouts_in_flight(engines, 10_000) == 10 + 1 + 7


@given(st.lists(CAPACITIES, min_size=1), st.integers(1, 10**6), st.integers(0, 10**6))
def test_every_engine_has_work_and_longer_rollouts_are_fewer(
    engines: list[EngineCapacity], tokens: int, more: int
) -> None:
    few, many = (rollouts_in_flight(engines, length) for length in (tokens + more, tokens))
    assert len(engines) <= few <= many
