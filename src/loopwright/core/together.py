"""Runs several pieces of asynchronous work at the same time, and ends them together. Every task has an owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("loopwright")

GRACE_SECONDS = 30.0
"""How long cancelled work may take to clean up. After that nobody waits for it."""
LAST_SECONDS = 5.0
"""How long tasks that are left at the very end may take. Whoever started them has given them their grace already."""


def own_task() -> asyncio.Task[Any]:
    """The task that runs the calling coroutine."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("only a coroutine in a task has a task of its own")
    return task


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all pieces of work and return their results in order. If one raises, the others are cancelled and awaited,
    and then its exception is raised as it is: an exception group would only add that the others were cancelled."""
    pieces = list(work)
    if len(pieces) == 1:
        # It needs no task of its own.
        return [await pieces[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in pieces]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed.exceptions[0].__cause__
    return [task.result() for task in tasks]


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns. If the caller is cancelled, `work` still runs to its end, and the caller is cancelled
    afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            # The caller will be cancelled in any case, so a second cancellation changes nothing.
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        task.result()
        raise


async def or_left_behind(work: Coroutine[Any, Any, T], what: str) -> T:
    """Return what `work` returns. If the caller is cancelled, `work` is cancelled too, and is waited for at most
    GRACE_SECONDS."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if (broken := await call_off(task)) is not None:
            raise broken from broken.__cause__
        if not task.done():
            log.warning("%s was cancelled, did not end within %g s, and is left behind", what, GRACE_SECONDS)
        raise


async def call_off(task: asyncio.Future[Any]) -> BaseException | None:
    """Cancel a task, wait at most GRACE_SECONDS for its end, and return the exception that it raised, if any."""
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE_SECONDS)
    return None if not task.done() or task.cancelled() else task.exception()


async def cancel_leftovers() -> None:
    """Cancel every other task of the event loop, so that it can be closed; it would wait for ever for an agent that
    cannot be cancelled."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=LAST_SECONDS)
    for task in left:
        # The process ends without them. Their owner has warned of them; asyncio need not do it again.
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        asyncio.tasks._unregister_task(task)
