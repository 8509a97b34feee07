"""A blocking function of the user's ends for whoever waits for it, however it ends."""

from __future__ import annotations

import asyncio
import sys

import pytest

from loopwright.workers.own_thread import in_own_thread


def leaves() -> None:
    sys.exit("enough")


def finds_nothing() -> int:
    return next(iter(()))


def is_cancelled() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("function", "said"),
    [(leaves, "SystemExit: enough"), (finds_nothing, "StopIteration"), (is_cancelled, "CancelledError")],
)
async def test_what_no_future_takes_is_an_error_all_the_same(function: object, said: str) -> None:
    assert callable(function)
    with pytest.raises(RuntimeError, match=f"^{said}$"):
        await asyncio.wait_for(in_own_thread(function, "test"), 5)
