"""Keeps one engine of a pool running.

An engine that died is started again, within a budget (R4): after several deaths in a row without an answer in between,
it is given up, and the error quotes its last words. An engine that answers with one error after another is treated as
if it had died, so that a sick engine does not fail every rollout. An engine that never served is not started again,
because a wrong model stays wrong. A new engine serves only after it has joined the pool, where it gets the current
weights.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from loopwright.engines.engine_spans import AnsweringSpans, EngineSpan, TellSpan, nobody
from loopwright.engines.worker import Launch, Worker
from loopwright.errors import (
    BudgetError,
    ClusterRoomError,
    ConfigError,
    EngineError,
    ModelError,
    RemoteError,
    WeightsError,
)
from loopwright.ports import StreamingEngine
from loopwright.types import UNKNOWN_CAPACITY, Generation

log = logging.getLogger("loopwright")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
SICK_AFTER = 3
"""How many errors in a row, without an answer in between, make an engine sick. One or two may be due to the
requests."""
LAST_WORDS_SECONDS = 1.0
"""How long to wait for the last words of a lost engine before it is ended."""


@dataclass(frozen=True, slots=True)
class ProvenVersion:
    """The version of the weights that an engine was proven to serve, and when (Unix time)."""

    version: int
    at: float


class Supervised:
    """`engine` is the running engine, if there is one. `capacity` is what it, or the last one, can hold. `busy` counts
    its calls, and `asking` holds them: they end when the engine is lost, because it may never answer them. Answers of
    `distrusted`, an engine that was lost, are in doubt. `on_change` is called when `engine` has changed. An engine that
    finds no room on a cluster is given up, unless `others_serve`. `tell` hears what the engine did, and `answering`
    when it answered calls. `proof` says which weights it was proven to serve last. It was lost `losses` times, last
    with `last_words`; `away_since` then (Unix time), if it is not back."""

    def __init__(
        self,
        name: str,
        launch: Launch,
        join: Callable[[Supervised, StreamingEngine], Awaitable[None]],
        on_death: Callable[[str], object],
        on_change: Callable[[], object],
        *,
        max_restarts: int,
        others_serve: Callable[[], bool] = lambda: False,
        tell: TellSpan = nobody,
    ) -> None:
        self.name = name
        self.answering = AnsweringSpans(name, tell)
        self.proof: ProvenVersion | None = None
        self.losses = 0
        self.away_since: float | None = None
        self.last_words = ""
        self._tell = tell
        self.engine: StreamingEngine | None = None
        self.capacity = UNKNOWN_CAPACITY
        self.busy = 0
        self.asking: set[asyncio.Future[Generation]] = set()
        self.distrusted: StreamingEngine | None = None
        self._launch = launch
        self._join = join
        self._on_death = on_death
        self._on_change = on_change
        self._max_restarts = max_restarts
        self._others_serve = others_serve
        self._deaths = 0
        self._errors = 0
        self._served = False
        self._lost = asyncio.Event()
        self._why = ""

    async def keep(self) -> None:
        """Keep an engine running until this is cancelled. Raises when the budget is used up."""
        while True:
            try:
                words = await self._live()
            except ClusterRoomError as error:
                if not self._served or not self._others_serve():
                    raise
                log.warning("engine %s waits for longer, because others serve: %s", self.name, error.message)
                continue
            except (ConfigError, ModelError, RemoteError, WeightsError) as error:
                # A model or weights that it could not read are perhaps there the next time.
                if not self._served or self._deaths >= self._max_restarts:
                    raise
                words = error.message
            self.answering.flush()
            self.losses, self.away_since, self.last_words, self.proof = self.losses + 1, time.time(), words, None
            self._on_death(words)
            self._deaths += 1
            if not self._served:
                raise BudgetError(f"engine {self.name} did not start: {words}", remedy="fix what its last words say")
            if self._deaths > self._max_restarts:
                raise BudgetError(
                    f"engine {self.name} was lost {self._deaths} times without answering in between: {words}",
                    remedy="fix what its last words say; if memory ran out, lower rollout.engine.max_batch",
                )
            await asyncio.sleep(min(FIRST_PAUSE_SECONDS * 2 ** (self._deaths - 1), LONGEST_PAUSE_SECONDS))

    def serve(self, engine: StreamingEngine) -> None:
        """Let `engine` get calls."""
        self.engine, self._errors = engine, 0
        if self.away_since is not None:
            now = time.time()
            facts = {"away_seconds": round(now - self.away_since, 3), "losses": self.losses}
            self._tell(EngineSpan("engine_back", self.name, now, 0.0, facts))
            self.away_since = None
        self._on_change()

    def answered(self, engine: StreamingEngine) -> None:
        """Record a good answer."""
        if engine is self.engine:
            self._deaths = self._errors = 0

    def failed(self, engine: StreamingEngine, error: EngineError) -> None:
        """Record an answer that was an error. An engine that is sick gets no more calls, and is replaced."""
        if engine is not self.engine:
            return
        self._errors += 1
        if self._errors >= SICK_AFTER:
            self.lose(engine, f"it answered {self._errors} times in a row with an error, at last: {error.message}")

    def lose(self, engine: StreamingEngine, why: str = "") -> None:
        """Record that `engine` cannot be used any more. It is ended, if it still runs, and replaced."""
        if engine is self.engine:
            self.engine, self._why = None, why
            self._lost.set()
            for asking in self.asking:
                asking.cancel()
            self._on_change()

    def distrust(self, engine: StreamingEngine, why: str) -> None:
        """Record that `engine` has served with other weights. What it streamed to its calls is in doubt too."""
        if engine is self.engine:
            self.distrusted = engine
            self.lose(engine, why)

    async def _live(self) -> str:
        """Start one engine and wait until it ends. Returns its last words."""
        self._lost.clear()
        try:
            async with self._launch() as worker:
                self.capacity = worker.capacity
                await self._join(self, worker.engine)
                self._served = True
                return await self._death(worker)
        except EngineError as error:
            return error.message
        finally:
            self.engine = None
            self._on_change()

    async def _death(self, worker: Worker) -> str:
        dying, losing = (asyncio.ensure_future(wait) for wait in (worker.died(), self._lost.wait()))
        try:
            await asyncio.wait((dying, losing), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((dying,), timeout=LAST_WORDS_SECONDS)
            return str(dying.result()) if dying.done() else self._why or "it did not answer any more"
        finally:
            dying.cancel()
            losing.cancel()
