"""The embedded engine: an EngineBatch that steps in the compute thread, behind the async engine port.

Every call and every step is a job of the compute thread. So a call takes effect between two tokens, in the order in
which calls were made. All requests of one turn of an event loop are one job, so they join the batch at the same step.
Results are delivered to the event loop of the caller.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from loopwright.engines.torch.batch import EngineBatch, halving
from loopwright.engines.torch.grammar import Grammars, GrammarState
from loopwright.engines.torch.sequence import Sequence
from loopwright.engines.torch.weights import EngineWeights
from loopwright.errors import EngineError, EngineLostError, UnanswerableError, WeightsError
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.models.memory import is_device_broken, is_out_of_memory
from loopwright.models.weight_files import WeightBytes, checked_weights, read_weights
from loopwright.ports import OnPart
from loopwright.types import (
    IN_PLACE,
    FinishReason,
    GenerateRequest,
    Generation,
    InPlace,
    PauseMode,
    ProbeAnswer,
    WeightBroadcast,
    WeightFile,
    WeightUpdate,
)

T = TypeVar("T")

log = logging.getLogger("loopwright")

SILENCE_SECONDS = 1.0
"""After this time, also report small batches of new tokens. Otherwise a slow model would seem to stand still."""


@dataclass(slots=True, eq=False)
class _Caller:
    """The future of a request's caller, the grammar of its answer, how many tokens `on_part` has received, and when."""

    future: asyncio.Future[Generation]
    loop: asyncio.AbstractEventLoop
    on_part: OnPart | None
    grammar: GrammarState | None = None
    told: int = 0
    told_at: float = field(default_factory=time.monotonic)


class TorchEngine:
    """Generation in this process, with the parameters of `loaded` themselves, so a colocated learner's weight update
    copies nothing. Leaving `async with` fails all requests that are still running. If the device breaks, every later
    call is an EngineLostError."""

    def __init__(
        self,
        loaded: LoadedModel,
        compute: ComputeThread,
        *,
        max_batch: int = 64,
        cache_tokens: int = 0,
        version: int = 0,
    ) -> None:
        self._model = loaded.model
        self._max_batch = max_batch
        self._compute = compute
        self._grammars = Grammars(loaded.tokenizer, loaded.model.config.vocab_size)
        self._weights = EngineWeights(loaded.model)
        self._batch = EngineBatch(loaded, max_batch=max_batch, cache_tokens=cache_tokens, version=version)
        self._callers: dict[Sequence, _Caller] = {}
        self._listeners: dict[Sequence, _Caller] = {}
        self._arrived: dict[asyncio.AbstractEventLoop, list[tuple[GenerateRequest, _Caller]]] = {}
        self._open = False
        self._step_is_due = False
        self._paused: PauseMode | None = None
        self._waiting_for_quiet: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._news: dict[asyncio.AbstractEventLoop, list[Callable[[], object]]] = {}
        self._expected = 0
        self._loads = 0
        self._lost: EngineLostError | None = None
        self._watching: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._send(asyncio.get_running_loop())
        self._open = False
        await self._compute.run(self._fail_all, _closed())

    @property
    def version(self) -> int:
        return self._batch.version

    async def died(self) -> EngineLostError:
        """Wait until the device is broken. Those who wait hear of it before the callers do."""
        loop = asyncio.get_running_loop()
        broke: asyncio.Future[None] = loop.create_future()
        # Before it is asked whether it is broken, because it breaks in another thread.
        self._watching.append((loop, broke))
        while self._lost is None:
            await broke
        return self._lost

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        self._check(request)
        loop = asyncio.get_running_loop()
        self._require_open()
        grammar = None
        if (constraint := request.constraint) is not None:
            # In a thread: compiling a large grammar takes long, and it needs neither the loop nor torch.
            grammar = await asyncio.to_thread(self._grammars.state, request, constraint)
            self._require_open()
        caller = _Caller(loop.create_future(), loop, on_part, grammar)
        if loop not in self._arrived:
            self._arrived[loop] = []
            loop.call_soon(self._send, loop)
        self._arrived[loop].append((request, caller))
        try:
            return await caller.future
        except asyncio.CancelledError:
            if self._open and self._lost is None:
                self._post(lambda: self._forget(caller))
            raise

    async def abort(self, request_id: str) -> None:
        await self._do(lambda: self._abort(lambda sequence: sequence.request.id == request_id))

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        loop = asyncio.get_running_loop()
        quiet: asyncio.Future[None] = loop.create_future()

        def pause() -> None:
            self._paused = mode
            self._waiting_for_quiet.append((loop, quiet))
            if mode is PauseMode.ABORT:
                # Also abort requests that wait for a slot: no request from before the pause must wait for its end.
                self._abort(lambda sequence: True)

        await self._do(pause)
        await quiet

    async def resume(self) -> None:
        def resume() -> None:
            self._paused = None

        await self._do(resume)

    async def load(self, version: int, update: WeightUpdate | WeightBytes = IN_PLACE) -> None:
        self._require_open()
        self._loads += 1
        this = self._loads
        tensors = await self._received(update)
        if this != self._loads:
            raise WeightsError(
                f"the weights of version {version} came after a newer update had begun; nothing was changed",
                remedy="nothing to do: whoever sent them has given up, and the newer ones are loaded",
            )
        change = None if tensors is None else self._weights.change(tensors)

        def load() -> None:
            if change is not None:
                change()
            self._batch.reload(version)

        await self._do(load)

    async def _received(self, update: WeightUpdate | WeightBytes) -> Mapping[str, Any] | None:
        """The new tensors by name, whole and verified. None if the parameters were changed in place."""
        match update:
            case InPlace():
                return None
            # Not in the compute thread: tokens are sampled while the weights arrive and are verified.
            case WeightFile():
                return await asyncio.to_thread(read_weights, update)
            case WeightBytes():
                return await asyncio.to_thread(checked_weights, update)
            case WeightBroadcast():
                from loopwright.models.broadcast import receive_weights

                return await asyncio.to_thread(receive_weights, update, device=str(self._model.device))

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        self._check(request)
        self._require_open()
        try:
            return await self._compute.run(self._batch.probe, request)
        except (RuntimeError, ValueError, KeyError) as error:
            raise self._failed(error) from error

    def expect(self, callers: int) -> None:
        def expect() -> None:
            self._expected = callers

        self._post(expect)

    # Jobs of the compute thread.

    def _step(self) -> None:
        self._step_is_due = False
        if not self._may_step():
            return
        if self._expected:
            self._batch.waiting.sort(key=lambda sequence: sequence.request.id)
        for sequence in self._batch.step(admit=self._paused is None):
            self._resolve(sequence, sequence.failure or sequence.generation())
        now = time.monotonic()
        for sequence, caller in self._listeners.items():
            self._tell(sequence, caller, now)

    def _look_round(self) -> None:
        """Called after every change: schedule a step if one is due, notice when a pause is complete, and report."""
        if not self._step_is_due and self._may_step():
            self._step_is_due = True
            self._compute.post(self._job(self._step))
        # If there is no pause any more, a resume came first, and there is nothing to wait for either.
        draining = self._paused is PauseMode.DRAIN and self._batch.live
        if not draining and self._waiting_for_quiet:
            self._rest()
        self._hand_over()

    def _rest(self) -> None:
        """Free memory, and end the pauses that wait for quiet. If that fails, they end with the error, because whoever
        has paused would compute in memory that was not freed."""
        failure = None
        try:
            self._batch.rest()
        except Exception as error:
            failure = self._failed(error)
            self._forget_all(failure)
        waiting, self._waiting_for_quiet = self._waiting_for_quiet, []
        for loop, quiet in waiting:
            self._announce(loop, partial(_end, quiet, failure))

    def _may_step(self) -> bool:
        batch = self._batch
        if self._lost is not None:
            return False
        if self._paused is not None:
            return self._paused is PauseMode.DRAIN and bool(batch.live)
        return not batch.idle and len(batch.live) + len(batch.waiting) >= self._expected

    def _submit(self, arrived: list[tuple[GenerateRequest, _Caller]]) -> None:
        for request, caller in arrived:
            if not caller.future.cancelled():
                try:
                    sequence = self._batch.submit(request, caller.grammar)
                except Exception as error:
                    # Only this request fails; the others in the job have nothing to do with it.
                    self._settle(caller, self._failed(error))
                    continue
                self._callers[sequence] = caller
                if caller.on_part is not None:
                    self._listeners[sequence] = caller
        if (why := self._lost or (None if self._open else _closed())) is not None:
            self._fail_all(why)

    def _forget(self, caller: _Caller) -> None:
        for sequence in [s for s, c in self._callers.items() if c is caller]:
            del self._callers[sequence]
            self._listeners.pop(sequence, None)
            self._batch.drop(sequence)
        self._look_round()

    def _abort(self, chosen: Callable[[Sequence], bool]) -> None:
        for sequence in [s for s in self._callers if chosen(s)]:
            sequence.finish = FinishReason.ABORT
            self._batch.drop(sequence)
            self._resolve(sequence, sequence.generation())

    def _tell(self, sequence: Sequence, caller: _Caller, now: float) -> None:
        """Report new tokens to a caller with `on_part`. The last tokens come with the result."""
        new = len(sequence.ids) - caller.told
        is_enough = new >= sequence.request.part_tokens or now - caller.told_at >= SILENCE_SECONDS
        if caller.on_part is None or not new or not is_enough:
            return
        part = sequence.generation().since(caller.told)
        caller.told, caller.told_at = len(sequence.ids), now
        self._announce(caller.loop, partial(caller.on_part, part))

    def _fail_all(self, error: EngineError) -> None:
        self._forget_all(error)
        self._look_round()

    def _forget_all(self, error: EngineError) -> None:
        self._batch.reset()
        for sequence in list(self._callers):
            self._resolve(sequence, error)

    def _resolve(self, sequence: Sequence, result: Generation | EngineError) -> None:
        self._listeners.pop(sequence, None)
        self._settle(self._callers.pop(sequence), result)

    def _settle(self, caller: _Caller, result: Generation | EngineError) -> None:
        self._announce(caller.loop, partial(_end, caller.future, result))

    def _announce(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
        self._news.setdefault(loop, []).append(callback)

    def _hand_over(self) -> None:
        """Wake each event loop once, not once per request: that would cost more than a token of a small model."""
        news, self._news = self._news, {}
        for loop, callbacks in news.items():
            # The loop may be closed, together with all its callers. Do not check this first: it may close after the
            # check, and then callers in other loops would never be woken.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_schedule, loop, callbacks)

    # Called from any thread.

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        """Submit all requests that an event loop has made since the last call. So the compute thread wakes up once and
        computes their prompts in one pass."""
        if arrived := self._arrived.pop(loop, None):
            self._compute.post(self._job(lambda: self._submit(arrived)))

    async def _do(self, command: Callable[[], None]) -> None:
        """Run a command between two tokens, and wait for it. If it fails, all running requests fail too, so that nobody
        waits forever."""
        self._require_open()
        self._send(asyncio.get_running_loop())

        def run() -> None:
            try:
                command()
            except Exception as error:
                # The command may be half done: live requests may have lost their keys or their place in the batch.
                self._fail_all(self._failed(error))
                raise
            self._look_round()

        try:
            await self._compute.run(run)
        except (RuntimeError, ValueError, KeyError) as error:
            raise self._failed(error) from error

    def _post(self, command: Callable[[], None]) -> None:
        """The same, without waiting."""
        self._require_open()
        self._send(asyncio.get_running_loop())
        self._compute.post(self._job(command))

    def _job(self, command: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                command()
            except Exception as error:
                # An error of torch (memory, numerics) affects every request of the batch. All of them fail and may be
                # retried; the engine continues with an empty batch.
                self._fail_all(self._failed(error))
            else:
                self._look_round()

        return run

    def _failed(self, error: Exception) -> EngineError:
        if isinstance(error, EngineError):
            return error
        if is_device_broken(error):
            return self._lose(error)
        if is_out_of_memory(error):
            return EngineError(
                f"the engine is out of memory on {self._batch.room}: {error}",
                remedy=f"{halving(self._max_batch)}; or lower rollout.engine.cache_tokens or rollout.max_new_tokens",
            )
        return EngineError(
            f"the engine failed: {type(error).__name__}: {error}",
            remedy="if memory ran out, lower rollout.engine.max_batch or cache_tokens, or rollout.max_new_tokens",
        )

    def _lose(self, error: Exception) -> EngineLostError:
        """The device can compute nothing more: fail all requests, and every later call. In any thread."""
        if self._lost is None:
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            self._lost = EngineLostError(
                f"the engine can compute nothing more on {self._model.device}: {why}",
                remedy="start the command again: only a new process can use the device, and a run goes on from its "
                "last checkpoint; if that happens again, `dmesg` may show what the driver says of the GPU",
            )
            log.error("%s", self._lost.message, exc_info=error)
            for loop, future in self._watching:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(_end, future, None)
            self._compute.post(partial(self._fail_all, self._lost))
        return self._lost

    def _require_open(self) -> None:
        if self._lost is not None:
            raise self._lost
        if not self._open:
            raise EngineError("the engine is not running", remedy="use it inside `async with TorchEngine(...)`")

    def _check(self, request: GenerateRequest) -> None:
        vocabulary = self._model.config.vocab_size
        if not request.prompt_ids or not all(0 <= token < vocabulary for token in request.prompt_ids):
            raise UnanswerableError(
                f"request {request.id}: the prompt must be a non-empty list of ids in 0..{vocabulary - 1}",
                remedy="render the prompt with the tokenizer of the model that is served",
            )


def _closed() -> EngineError:
    return EngineError("the engine was closed", remedy="keep `async with engine` open while generating")


def _end(future: asyncio.Future[T], result: T | EngineError) -> None:
    """End a future, unless its caller has gone."""
    if future.done():
        return
    if isinstance(result, EngineError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _schedule(loop: asyncio.AbstractEventLoop, callbacks: list[Callable[[], object]]) -> None:
    """Schedule each callback separately, so that one that raises does not affect the others."""
    for callback in callbacks:
        loop.call_soon(callback)
