"""Keeps one engine of a pool running.

An engine that died is started again, within a budget (R4): after several deaths in a row without an answer in between,
it is given up, and the error quotes its last words. An engine that never served is not started again, because a wrong
model stays wrong. A new engine serves only after it has joined the pool, where it gets the current weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loopwright.engines.worker import Launch, Worker
from loopwright.errors import BudgetError, EngineError
from loopwright.ports import StreamingEngine

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
LAST_WORDS_SECONDS = 1.0
"""How long to wait for the last words of a lost engine before it is ended."""


class Supervised:
    """`engine` is the running engine, if there is one. `busy` counts its calls."""

    def __init__(
        self,
        name: str,
        launch: Launch,
        join: Callable[[Supervised, StreamingEngine], Awaitable[None]],
        on_death: Callable[[str], object],
        *,
        max_restarts: int,
    ) -> None:
        self.name = name
        self.engine: StreamingEngine | None = None
        self.busy = 0
        self._launch = launch
        self._join = join
        self._on_death = on_death
        self._max_restarts = max_restarts
        self._deaths = 0
        self._served = False
        self._lost = asyncio.Event()
        self._why = ""

    async def keep(self) -> None:
        """Keep an engine running until this is cancelled. Raises when the budget is used up."""
        while True:
            words = await self._live()
            self._on_death(words)
            self._deaths += 1
            if not self._served:
                raise BudgetError(f"an engine did not start: {words}", remedy="fix what its last words say")
            if self._deaths > self._max_restarts:
                raise BudgetError(
                    f"an engine died {self._deaths} times without answering in between: {words}",
                    remedy="fix what its last words say; if memory ran out, lower rollout.engine.max_batch",
                )
            await asyncio.sleep(min(FIRST_PAUSE_SECONDS * 2 ** (self._deaths - 1), LONGEST_PAUSE_SECONDS))

    def answered(self) -> None:
        self._deaths = 0

    def lose(self, engine: StreamingEngine, why: str = "") -> None:
        """Record that `engine` cannot be used any more. It is ended, if it still runs, and replaced."""
        if engine is self.engine:
            self.engine, self._why = None, why
            self._lost.set()

    async def _live(self) -> str:
        """Start one engine and wait until it ends. Returns its last words."""
        self._lost.clear()
        try:
            async with self._launch() as worker:
                await self._join(self, worker.engine)
                self._served = True
                return await self._death(worker)
        except EngineError as error:
            return error.message
        finally:
            self.engine = None

    async def _death(self, worker: Worker) -> str:
        dying, losing = (asyncio.ensure_future(wait) for wait in (worker.died(), self._lost.wait()))
        try:
            await asyncio.wait((dying, losing), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((dying,), timeout=LAST_WORDS_SECONDS)
            return str(dying.result()) if dying.done() else self._why or "it did not answer any more"
        finally:
            dying.cancel()
            losing.cancel()
