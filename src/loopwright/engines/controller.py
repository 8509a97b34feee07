"""A pool of one or more engines, as one engine that does not die.

The invariants: each token of an answer is sampled once, no matter what happens to the engines, and is stamped with the
version that sampled it (T4). An engine serves only with the current weights. If a pause or the death of an engine cuts
an answer short, the answer continues from the tokens that have arrived. So it does if an engine answers with an error,
as long as there is another engine to ask. Only a pause returns a partial answer, and only to callers that can continue
from it themselves. If the pool cannot be kept alive, every call fails with the error of its restart budget (R4).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from loopwright.core.in_flight import RolloutInFlight, RolloutsInFlight
from loopwright.core.partial_answer import PartialAnswer
from loopwright.engines.engine_spans import TellSpan, nobody
from loopwright.engines.pool import LOAD_SECONDS, MAX_RESTARTS, Pool, Prove, unproven
from loopwright.engines.routing import Router
from loopwright.engines.stopwatch import Stopwatch
from loopwright.engines.supervised import Supervised
from loopwright.engines.worker import Launch
from loopwright.errors import EngineError, EngineLostError, ProofError, UnanswerableError
from loopwright.ports import OnPart, StreamingEngine
from loopwright.types import (
    IN_PLACE,
    EngineCapacity,
    FinishReason,
    GenerateRequest,
    Generation,
    PauseMode,
    ProbeAnswer,
    WeightUpdate,
)

MAX_BREAKS = 3
"""How often one answer may lose its engine, or get an error from it. After that the request itself may be the
cause."""
STRAGGLER_SECONDS = 2.0
"""How long to wait for aborted answers to arrive."""


@dataclass(slots=True, eq=False)
class _Call:
    """A request, its answer so far, which engines answered it with an error, and why it may have to end early.
    `rollout` is the one that it is made for, if that is in flight here."""

    request: GenerateRequest
    answer: PartialAnswer
    rollout: RolloutInFlight | None = None
    begun: bool = False
    aborted: bool = False
    cut: bool = False
    asking: asyncio.Future[Generation] | None = None
    failed_by: list[Supervised] = field(default_factory=list)

    @property
    def ends(self) -> bool:
        """Whether it returns with what it has: it was aborted by its id, or a pause returns it."""
        return self.aborted or (self.cut and self.request.resumable)


class RolloutController:
    """A `StreamingEngine` over a pool of engines. `open` makes it."""

    def __init__(self, pool: Pool) -> None:
        self.in_flight = RolloutsInFlight()
        self._pool = pool
        self._router: Router[Supervised] = Router()
        self._calls: set[_Call] = set()
        self._paused: PauseMode | None = None
        self._updates = 0
        """How many updates are under way."""
        self._held = Stopwatch()
        self._steps = 0

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        launches: Sequence[Launch],
        *,
        max_restarts: int = MAX_RESTARTS,
        load_seconds: float = LOAD_SECONDS,
        on_death: Callable[[str], object] = lambda words: None,
        prove: Prove = unproven,
        tell: TellSpan = nobody,
    ) -> AsyncIterator[Self]:
        """Start the engines of a pool, and yield the controller when they serve. Leaving ends them.

        `on_death` gets the last words of each engine that is lost. `prove` is asked after every update. An engine may
        take `load_seconds` for an update with its proof.
        """
        pool = Pool(
            launches, max_restarts=max_restarts, on_death=on_death, prove=prove, load_seconds=load_seconds, tell=tell
        )
        async with pool.open():
            yield cls(pool)

    @property
    def version(self) -> int:
        return self._pool.version

    @property
    def capacities(self) -> Sequence[EngineCapacity]:
        """What each engine of the pool can hold."""
        return self._pool.capacities

    @property
    def steps(self) -> int:
        """How often tokens arrived. While this grows, some engine is working."""
        return self._steps

    def held_seconds(self) -> float:
        """For how many seconds in total nobody was answered, because the pool was paused or no engine ran."""
        return self._held.seconds()

    def standing(self) -> list[dict[str, Any]]:
        """Each engine: whether it serves, its weights and their proof, its calls, and how often it was lost."""
        return [
            {
                "name": member.name,
                "serves": member in self._pool.running,
                "version": self._pool.version if member.engine is not None else None,
                "proof": None if member.proof is None else {"version": member.proof.version, "at": member.proof.at},
                "calls": member.busy,
                "losses": member.losses,
                "away_since": member.away_since,
                "last_words": member.last_words or None,
            }
            for member in self._pool.members
        ]

    @property
    def is_paused(self) -> bool:
        return self._paused is not None

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        rollout = self.in_flight.of(request)
        call = _Call(request, PartialAnswer(request, on_part), rollout)
        self._calls.add(call)
        if rollout is not None:
            rollout.began(call.answer)
        try:
            return await self._answer(call)
        finally:
            if rollout is not None:
                rollout.ended(call.answer)
            self._calls.remove(call)
            self._pool.changed.notify()

    async def abort(self, request_id: str) -> None:
        for call in self._calls:
            call.aborted |= call.request.id == request_id
        self._pool.changed.notify()
        await self._pool.each(lambda engine: engine.abort(request_id))

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        """Pause the pool: calls that come later wait. With `abort`, all earlier resumable calls have returned.

        If the pool is already paused, draining it drains its engines only: calls that wait for the end of the pause
        keep waiting.
        """
        is_new = self._paused is None
        if is_new:
            self._held.start()
        if is_new and mode is PauseMode.DRAIN:
            self._paused = mode
            await self._pool.until(lambda: not any(call.begun for call in self._calls))
        elif mode is not PauseMode.DRAIN:
            self._paused = mode
        for call in self._calls if mode is PauseMode.ABORT else ():
            call.cut = True
        self._pool.changed.notify()
        await self._pool.each(lambda engine: engine.pause(mode))
        for member in self._pool.members:
            member.answering.flush()
        if mode is PauseMode.ABORT:
            await self._cut_stragglers()

    async def resume(self) -> None:
        if self._paused is not None:
            self._held.stop()
        self._paused = None
        for call in self._calls:
            call.cut = False
        await self._pool.each(lambda engine: engine.resume())
        self._pool.changed.notify()

    async def load(self, version: int, update: WeightUpdate = IN_PLACE) -> None:
        """Load weights into all engines, and prove that they have them. An engine that is away loads the same weights
        before it serves again. Calls that come meanwhile wait, so that nothing is sampled before the proof."""
        self._updates += 1
        try:
            await self._pool.load(version, update)
        finally:
            self._updates -= 1
            self._pool.changed.notify()

    async def void_weights(self) -> None:
        """The learner that made the weights is lost, and they with it. The pool is paused, answers that have begun end
        as they are, and no engine serves until `load` has given them others."""
        self._pool.void_weights()
        for call in self._calls:
            call.aborted |= call.begun
        await self.pause(PauseMode.ABORT)

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        """The answer of an engine that serves."""
        for member in self._pool.running:
            if member.engine is not None:
                return await member.engine.probe(request)
        raise EngineError("no engine of the pool is running", remedy="wait until one was started again")

    async def _answer(self, call: _Call) -> Generation:
        breaks = 0
        while (member := await self._admit(call)) is not None:
            try:
                await self._ask(member, call)
            except EngineError as error:
                breaks += 1
                if breaks > MAX_BREAKS or not self._may_go_on(call, member, error):
                    raise
                continue
            self._steps += 1
            if call.answer.so_far.finish is not FinishReason.ABORT or call.ends or call.request.resumable:
                break
        return call.answer.so_far

    async def _admit(self, call: _Call) -> Supervised | None:
        """Wait for an engine of the pool. None if the call must end instead."""
        if not (running := self._places_for(call)) and not call.ends:
            with self._held.running():
                await self._pool.until(lambda: call.ends or bool(self._places_for(call)))
            running = self._places_for(call)
        if call.ends:
            return None
        call.begun = True
        return self._router.choose(call.request, running, call.failed_by)

    def _places_for(self, call: _Call) -> Sequence[Supervised]:
        """The engines that may answer the call now: if possible, only those that have not failed it yet."""
        if not self._lets_in(call):
            return ()
        running = self._pool.running
        if not call.failed_by:
            return running
        return [member for member in running if member not in call.failed_by] or running

    def _may_go_on(self, call: _Call, member: Supervised, error: EngineError) -> bool:
        """Whether another engine may be asked after this error. A lost engine is replaced, and an error may be the
        engine's own. What was sampled with other weights is not continued."""
        if isinstance(error, EngineLostError):
            return True
        if isinstance(error, ProofError):
            return False
        call.failed_by.append(member)
        return not isinstance(error, UnanswerableError) and any(one not in call.failed_by for one in self._pool.running)

    def _lets_in(self, call: _Call) -> bool:
        """Whether the call may run now: not during an update. During a drain, calls that had begun may finish, also on
        another engine."""
        if self._updates:
            return False
        return self._paused is None or (self._paused is PauseMode.DRAIN and call.begun)

    async def _ask(self, member: Supervised, call: _Call) -> None:
        """Let one engine continue the answer. The tokens that it streams are kept, also if it dies."""
        engine = member.engine
        if engine is None:
            raise RuntimeError("a call was given to a place without an engine")

        def keep(part: Generation) -> None:
            call.answer.hear(part)
            self._steps += 1

        if call.rollout is not None:
            call.rollout.asked(member.name)
        call.asking = asyncio.ensure_future(engine.generate(call.answer.rest(), keep))
        if not member.busy:
            member.answering.began()
        member.busy += 1
        member.answering.called()
        member.asking.add(call.asking)
        try:
            await _end_of(call.asking)
        finally:
            member.busy -= 1
            if not member.busy:
                member.answering.rested()
            member.asking.discard(call.asking)
            if not call.asking.done():
                call.asking.cancel()
                await _end_of(call.asking)
        if call.asking.cancelled():
            if engine is not member.engine:
                raise _lost_with(member, engine)
            return
        try:
            call.answer.add(call.asking.result())
        except EngineLostError:
            member.lose(engine)
            raise
        except UnanswerableError:
            raise
        except ProofError as error:
            member.distrust(engine, error.message)
            raise
        except EngineError as error:
            member.failed(engine, error)
            raise
        member.answered(engine)

    async def _cut_stragglers(self) -> None:
        """Abort requests that reached their engine after the pause and wait there."""

        def stragglers() -> list[_Call]:
            return [call for call in self._calls if call.ends]

        try:
            async with asyncio.timeout(STRAGGLER_SECONDS):
                await self._pool.until(lambda: not stragglers())
        except TimeoutError:
            for call in stragglers():
                if call.asking is not None:
                    call.asking.cancel()


def _lost_with(member: Supervised, engine: StreamingEngine) -> EngineError:
    if member.distrusted is engine:
        return ProofError(
            f"engine {member.name} has served with other weights than the run's while it answered",
            remedy="nothing to do: the engine is replaced, and the rollout is made again",
        )
    return EngineLostError(f"engine {member.name} was lost", remedy="nothing to do: it is replaced")


async def _end_of(work: asyncio.Future[Any]) -> None:
    """Wait for the future, no matter how it ends. For one future, `asyncio.wait` would take as long as the rest of a
    call takes here."""
    ended = asyncio.get_running_loop().create_future()
    work.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
    await ended
