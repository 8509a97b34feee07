"""Work that is done at the same time and has one owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What each returns, in their order. When one raises, the others are cancelled and waited for; then it is raised
    as it is, because a group of exceptions would only add that its siblings were cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed.exceptions[0].__cause__
    return [task.result() for task in tasks]
