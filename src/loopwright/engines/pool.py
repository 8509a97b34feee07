"""Keeps several engines alive and on the current weights.

The invariant: a running engine was proven to have the weights that were loaded last (W1). Weights go to all engines,
and an engine that starts later gets them before it serves. An update ends with each engine on the new version or
counted as lost (W2). An engine that cannot be kept alive is given up, and the others go on. When none is left, all
waiting callers get the reason. If the learner is lost, its weights are void: no engine serves until others were loaded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Self

from loopwright.core.together import together
from loopwright.core.wakeup import WakeUp
from loopwright.engines.engine_spans import EngineSpan, TellSpan, nobody
from loopwright.engines.supervised import ProvenVersion, Supervised
from loopwright.engines.worker import Launch
from loopwright.errors import (
    EngineError,
    EngineLostError,
    LearnerLostError,
    LeaseError,
    LoopwrightError,
    ProofError,
)
from loopwright.ports import StreamingEngine
from loopwright.types import IN_PLACE, EngineCapacity, WeightUpdate

log = logging.getLogger("loopwright")

MAX_RESTARTS = 3
LOAD_SECONDS = 600.0
"""How long an engine may take to load an update and to be proven."""

Prove = Callable[[str, StreamingEngine, int], Awaitable[None]]
"""Raises if the engine of that name does not serve the weights of that version."""


async def unproven(name: str, engine: StreamingEngine, version: int) -> None:
    """For engines that compute nothing."""


class Pool:
    """The engines that `launches` start, supervised. `on_death` gets the last words of each engine that is lost.
    `running` are those that serve; there is a new list after every change."""

    def __init__(
        self,
        launches: Sequence[Launch],
        *,
        max_restarts: int,
        on_death: Callable[[str], object],
        prove: Prove,
        load_seconds: float = LOAD_SECONDS,
        tell: TellSpan = nobody,
    ) -> None:
        self.changed = WakeUp()
        self._prove = prove
        self._tell = tell
        self._load_seconds = load_seconds
        self._members = [
            Supervised(
                str(number),
                launch,
                self._join,
                on_death,
                self._count_running,
                max_restarts=max_restarts,
                others_serve=lambda: bool(self.running),
                tell=tell,
            )
            for number, launch in enumerate(launches)
        ]
        self.running: list[Supervised] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._is_open = False
        self._loading = asyncio.Lock()
        self._update: WeightUpdate = IN_PLACE
        self._version: int | None = None
        self._is_void = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Start all engines, and wait until they serve. Leaving ends them."""
        try:
            for member in self._members:
                keeper = asyncio.create_task(member.keep(), name=f"engine {member.name}")
                keeper.add_done_callback(self._ended)
                self._keepers.append(keeper)
            await self.until(lambda: len(self.running) == len(self._members))
            self._is_open = True
            yield self
        finally:
            for keeper in self._keepers:
                keeper.cancel()
            await asyncio.gather(*self._keepers, return_exceptions=True)

    @property
    def version(self) -> int:
        return self._version or 0

    @property
    def members(self) -> Sequence[Supervised]:
        """All engines, also those that are away."""
        return self._members

    @property
    def capacities(self) -> list[EngineCapacity]:
        """What each engine can hold, also one that is being replaced."""
        return [member.capacity for member in self._members]

    async def load(self, version: int, update: WeightUpdate) -> None:
        """Give all engines new weights, and prove that they have them. An engine that fails is lost, and replaced.

        Raises only if no engine took the update and one of them refused it, or if the learner was lost. The pool keeps
        its version then, and so does an engine that refused the update. One that was not proven has unknown weights, so
        it is lost in any case.
        """
        async with self._loading:
            running = [(member, member.engine) for member in self._members if member.engine is not None]
            try:
                refusals = await together(self._loaded(member, engine, version, update) for member, engine in running)
            except BaseException:
                # Nobody knows how far each of them came.
                for member, engine in running:
                    member.lose(engine, f"its update to version {version} was broken off")
                raise
            if (lost := next((one for one in refusals if isinstance(one, LearnerLostError)), None)) is not None:
                # The engines are well. Each gets the weights of the next learner, however far it came with these.
                self.void_weights()
                raise lost
            refused = [(*asked, refusal) for asked, refusal in zip(running, refusals, strict=True) if refusal]
            is_refused = bool(refused) and len(refused) == sum(member.engine is not None for member in self._members)
            if not is_refused:
                self._version, self._update = version, update
                if self._is_void:
                    self._is_void = False
                    self._count_running()
            for member, engine, refusal in refused:
                if not is_refused or isinstance(refusal, ProofError):
                    member.lose(engine, refusal.message)
            if is_refused:
                raise refused[0][2]

    def void_weights(self) -> None:
        """The learner that made the weights is lost. No engine serves until `load` has given them others."""
        self._is_void = True
        self._count_running()

    async def _loaded(
        self, member: Supervised, engine: StreamingEngine, version: int, update: WeightUpdate
    ) -> LoopwrightError | None:
        """Update one engine. Gives the error if the engine refused the update or did not pass its proof, or if the
        learner was lost meanwhile."""
        try:
            await self._updated(member, engine, version, update)
        except EngineLostError as lost:
            member.lose(engine, lost.message)
        except LoopwrightError as refusal:
            return refusal
        return None

    async def _updated(self, member: Supervised, engine: StreamingEngine, version: int, update: WeightUpdate) -> None:
        start, mark, error = time.time(), time.monotonic(), None
        try:
            async with asyncio.timeout(self._load_seconds):
                await engine.load(version, update)
                await self._proven(member, engine, version)
        except BaseException as broken:
            error = type(broken).__name__
            if not isinstance(broken, TimeoutError):
                raise
            raise EngineLostError(
                f"engine {member.name} did not load the weights of version {version} within {self._load_seconds:g} s",
                remedy="see its log",
            ) from None
        finally:
            facts = {"version": version}
            self._tell(EngineSpan("load", member.name, start, time.monotonic() - mark, facts, error))

    async def _proven(self, member: Supervised, engine: StreamingEngine, version: int) -> None:
        """Whatever error keeps a proof from being made, the engine has new weights that are not proven. So none of them
        may be taken for a refusal of the update."""
        try:
            await self._prove(member.name, engine, version)
            member.proof = ProvenVersion(version, time.time())
        except (EngineLostError, ProofError, LearnerLostError):
            raise
        except LoopwrightError as error:
            raise ProofError(
                f"engine {member.name} could not be proven to serve the weights of version {version}: {error.message}",
                remedy=error.remedy,
            ) from error

    async def each(self, command: Callable[[StreamingEngine], Awaitable[None]]) -> None:
        """Run a command on every engine. An engine that does not follow it is lost, and replaced by one that does not
        need it."""

        async def one(member: Supervised, engine: StreamingEngine) -> None:
            try:
                await command(engine)
            except EngineError as error:
                member.lose(engine, error.message)

        await together(one(member, member.engine) for member in self._members if member.engine is not None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for `condition`. Raises the error that ended the pool, if it ended."""
        await self.changed.until(lambda: condition() or self._failure() is not None)
        if not condition() and (failure := self._failure()) is not None:
            raise failure

    async def _join(self, member: Supervised, engine: StreamingEngine) -> None:
        """Load the current weights into an engine, and let it serve. The lock ensures that it misses no newer
        weights."""
        async with self._loading:
            if self._version is None:
                self._version = engine.version
            elif self._is_void:
                # It gets its weights with all others.
                pass
            elif engine.version != self._version or self._update != IN_PLACE:
                await self._caught_up(member, engine, self._version)
            member.serve(engine)

    async def _caught_up(self, member: Supervised, engine: StreamingEngine, version: int) -> None:
        try:
            await self._updated(member, engine, version, self._update)
        except LearnerLostError as lost:
            raise EngineLostError(
                f"engine {member.name} could not be proven: {lost.message}", remedy="nothing to do: it is started again"
            ) from lost

    def _count_running(self) -> None:
        self.running = [] if self._is_void else [member for member in self._members if member.engine is not None]
        self.changed.notify()

    def _ended(self, keeper: asyncio.Task[None]) -> None:
        """Nobody keeps an engine alive any more."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            words = error.message if isinstance(error, LoopwrightError) else repr(error)
            log.warning("%s is given up: %s", keeper.get_name(), words)
        self.changed.notify()

    def _failure(self) -> BaseException | None:
        """The error that ended the pool. At the start every engine has to come up. Later the pool goes on with the
        engines that are left, unless another run has taken one or there is a bug."""
        ended = [keeper.exception() for keeper in self._keepers if keeper.done() and not keeper.cancelled()]
        if len(ended) == len(self._keepers) or not self._is_open:
            return next(iter(ended), None)
        return next((error for error in ended if isinstance(error, LeaseError) or not _is_known(error)), None)


def _is_known(error: BaseException | None) -> bool:
    return isinstance(error, LoopwrightError)
