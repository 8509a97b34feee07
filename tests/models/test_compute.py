"""One thread, in the order of asking."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from loopwright.models.compute import ComputeThread


async def test_everything_runs_in_one_other_thread_in_the_order_of_asking() -> None:
    seen: list[tuple[int, int]] = []

    def note(number: int) -> Any:
        seen.append((number, threading.get_ident()))
        return number

    with ComputeThread() as compute:
        for number in range(20):
            compute.post(partial(note, number))
        assert await compute.run(note, 20) == 20
    assert [number for number, _ in seen] == list(range(21))
    [thread] = {thread for _, thread in seen}
    assert thread != threading.get_ident()


async def test_what_a_job_raises_reaches_who_waits_for_it() -> None:
    with ComputeThread() as compute:
        with pytest.raises(ZeroDivisionError):
            await compute.run(lambda: 1 / 0)
        assert await compute.run(lambda: "still here") == "still here"


async def test_leaving_waits_for_what_is_still_to_do() -> None:
    done: list[int] = []
    with ComputeThread() as compute:
        for number in range(50):
            compute.post(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == list(range(50))
