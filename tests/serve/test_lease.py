"""One run at a time holds a server: others are refused, the resumed run is not, and a silent one loses it."""

from __future__ import annotations

from typing import Any

import pytest

from loopwright.errors import RefusedError
from loopwright.serve.lease import LINEAGE_HEADER, RUN_HEADER, Lease, LeaseHolder, lease_from_json

FIRST, RESUMED, OTHER = LeaseHolder("a", 0), LeaseHolder("a", 1), LeaseHolder("b", 7)


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> Lease:
    lease = Lease(clock)
    lease.take(FIRST, 10)
    return lease


def refused(call: Any, *given: Any) -> bool:
    try:
        call(*given)
    except RefusedError as error:
        return bool(error.facts["status"] == 409)
    return False


def test_another_run_is_refused_and_told_by_whom(lease: Lease) -> None:
    with pytest.raises(RefusedError, match=r"run a \(lineage 0\) holds this server for another 10 s"):
        lease.take(OTHER, 10)
    assert refused(lease.check, OTHER)
    assert refused(lease.check, None), "who does not say who it is"
    assert refused(lease.release, OTHER)
    assert not refused(lease.check, FIRST)


def test_the_resumed_run_takes_it_over_and_the_earlier_process_is_refused(lease: Lease) -> None:
    lease.take(RESUMED, 10)
    assert lease.holder == RESUMED
    assert refused(lease.take, FIRST, 10)
    assert refused(lease.check, FIRST)


def test_it_ends_without_a_heartbeat_and_goes_on_with_one(lease: Lease, clock: Clock) -> None:
    clock.time = 9
    lease.take(FIRST, 10)
    clock.time = 18
    assert refused(lease.take, OTHER, 10)
    clock.time = 19
    assert lease.holder is None
    lease.take(OTHER, 10)
    assert refused(lease.take, RESUMED, 10)


def test_its_holder_ends_it_and_without_it_everybody_is_free(lease: Lease) -> None:
    lease.release(FIRST)
    assert not refused(lease.check, None)
    lease.release(None)
    lease.take(OTHER, 1)


def test_headers_say_who_asks() -> None:
    assert LeaseHolder.of_headers(RESUMED.headers()) == RESUMED
    assert LeaseHolder.of_headers({}) is None
    assert LeaseHolder.of_headers({"x-loopwright-run": "a", "x-loopwright-lineage": "first"}) is None


@pytest.mark.parametrize(
    "body",
    [
        None,
        {"run": "a", "lineage": 0},
        {"run": "", "lineage": 0, "seconds": 1},
        {"run": "a\r\nb", "lineage": 0, "seconds": 1},
        {"run": "a", "lineage": -1, "seconds": 1},
        {"run": "a", "lineage": 0, "seconds": 0},
        {"run": "a", "lineage": 0, "seconds": 1e9},
        {"run": "a", "lineage": 0, "seconds": float("nan")},
    ],
)
def test_what_asks_for_no_lease_is_refused(body: Any) -> None:
    with pytest.raises(RefusedError, match="asks for no lease"):
        lease_from_json(body)


@pytest.mark.parametrize("lineage", ["", "-1", "\xb2", "1.0", "9" * 5000])
def test_a_request_with_an_odd_lineage_is_of_nobody(lineage: str) -> None:
    assert LeaseHolder.of_headers({RUN_HEADER: "a", LINEAGE_HEADER: lineage}) is None
