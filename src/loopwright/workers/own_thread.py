"""The user's blocking functions, each call in a thread of its own: it blocks nobody, and waits for nobody's.

A thread cannot be stopped. One that nobody waits for any more is left to itself, and dies with the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any


async def in_own_thread(call: Callable[[], Any], name: str) -> Any:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            done.set_exception(error)
        else:
            # No future takes a StopIteration, and a SystemExit or a cancellation would end more than this call.
            failed = RuntimeError(f"{type(error).__name__}: {error}".removesuffix(": "))
            failed.__cause__ = error
            done.set_exception(failed)

    def work() -> None:
        try:
            result, error = context.run(call), None
        except BaseException as raised:
            result, error = None, raised
        # Nobody waits any more when the loop is gone.
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await done
