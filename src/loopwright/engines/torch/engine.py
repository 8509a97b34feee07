"""The embedded engine: a Batch that steps in its own thread, behind the async engine port.

Commands reach the thread through one queue and take effect between two tokens, in the order they were given. A
caller's future is resolved on the caller's own event loop.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch

from loopwright.engines.torch.batch import Batch
from loopwright.engines.torch.sequence import Sequence
from loopwright.errors import EngineError
from loopwright.models.load import LoadedModel
from loopwright.ports.engine import PauseMode
from loopwright.types import FinishReason, GenerateRequest, Generation

Command = Callable[[], None]


@dataclass(slots=True, eq=False)
class _Caller:
    """Who waits for a request's result."""

    sequence: Sequence
    future: asyncio.Future[Generation]
    loop: asyncio.AbstractEventLoop


class TorchEngine:
    """Generation in this process, on the very parameters of `loaded`, so that a colocated learner's weight sync
    copies nothing. Use it as `async with TorchEngine(...) as engine`."""

    def __init__(self, loaded: LoadedModel, *, max_batch: int = 64, version: int = 0) -> None:
        self._model = loaded.model
        self._batch = Batch(loaded, max_batch=max_batch, version=version)
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._callers: dict[Sequence, _Caller] = {}
        self._thread = threading.Thread(target=self._run, name="loopwright-engine", daemon=True)
        self._open = False
        self._paused: PauseMode | None = None
        self._quiet: list[Callable[[], object]] = []
        self._expected = 0

    async def __aenter__(self) -> Self:
        self._thread.start()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    @property
    def version(self) -> int:
        return self._batch.version

    async def generate(self, request: GenerateRequest) -> Generation:
        self._check(request)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        self._commands.put(lambda: self._submit(request, future, loop))
        try:
            return await future
        except asyncio.CancelledError:
            self._commands.put(lambda: self._forget(future))
            raise

    async def abort(self, request_id: str) -> None:
        await self._do(lambda: self._abort(lambda s: s.request.id == request_id))

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        loop = asyncio.get_running_loop()
        quiet = asyncio.Event()

        def pause() -> None:
            self._paused = mode
            if mode is PauseMode.ABORT:
                self._abort(lambda s: s in self._batch.live)
            self._quiet.append(lambda: loop.call_soon_threadsafe(quiet.set))

        self._put(pause)
        await quiet.wait()

    async def resume(self) -> None:
        def resume() -> None:
            self._paused = None

        await self._do(resume)

    async def load(self, version: int, weights: Mapping[str, Any] | None = None) -> None:
        def load() -> None:
            if weights is not None:
                with torch.no_grad():
                    for name, parameter in self._model.named_parameters():
                        parameter.copy_(weights[name])
            self._batch.reload(version)

        if weights is not None:
            self._check_names(weights)
        await self._do(load)

    def expect(self, callers: int) -> None:
        def expect() -> None:
            self._expected = callers

        self._put(expect)

    # What follows runs in the engine's thread only.

    def _run(self) -> None:
        while True:
            if not self._obey():
                break
            if self._may_step():
                self._step()
            if self._quiet and self._is_quiet():
                for notify in self._quiet:
                    notify()
                self._quiet.clear()
        self._fail_all(EngineError("the engine was closed", remedy="keep `async with engine` open while generating"))

    def _obey(self) -> bool:
        """Carry out what was asked meanwhile; wait when there is nothing else to do. False ends the thread."""
        wait = not self._may_step() and not (self._quiet and self._is_quiet())
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            wait = False

    def _may_step(self) -> bool:
        batch = self._batch
        if batch.idle:
            return False
        if self._paused is PauseMode.DRAIN:
            return bool(batch.live)
        if self._paused is not None:
            return False
        return len(batch.live) + len(batch.waiting) >= self._expected

    def _is_quiet(self) -> bool:
        return self._paused is not None and not (self._paused is PauseMode.DRAIN and self._batch.live)

    def _step(self) -> None:
        if self._expected:
            ordered = sorted(self._batch.waiting, key=lambda s: s.request.id)
            self._batch.waiting.clear()
            self._batch.waiting.extend(ordered)
        try:
            finished = self._batch.step(admit=self._paused is None)
        except Exception as error:
            # Whatever torch raises (memory, numerics) concerns every request of the batch. They are told, and may
            # retry; the thread goes on with an empty batch.
            self._fail_all(_failed(error))
            return
        for sequence in finished:
            self._resolve(sequence, sequence.generation())

    def _submit(
        self, request: GenerateRequest, future: asyncio.Future[Generation], loop: asyncio.AbstractEventLoop
    ) -> None:
        if not future.cancelled():
            sequence = self._batch.submit(request)
            self._callers[sequence] = _Caller(sequence, future, loop)

    def _abort(self, chosen: Callable[[Sequence], bool]) -> None:
        for sequence in [s for s in self._callers if chosen(s)]:
            sequence.finish = FinishReason.ABORT
            self._batch.drop(sequence)
            self._resolve(sequence, sequence.generation())

    def _forget(self, future: asyncio.Future[Generation]) -> None:
        for sequence, caller in list(self._callers.items()):
            if caller.future is future:
                del self._callers[sequence]
                self._batch.drop(sequence)

    def _resolve(self, sequence: Sequence, result: Generation | EngineError) -> None:
        caller = self._callers.pop(sequence)

        def settle() -> None:
            if caller.future.done():
                return
            if isinstance(result, EngineError):
                caller.future.set_exception(result)
            else:
                caller.future.set_result(result)

        _call(caller.loop, settle)

    def _fail_all(self, error: EngineError) -> None:
        for sequence in list(self._callers):
            self._batch.drop(sequence)
            self._resolve(sequence, error)

    # What follows runs in the callers' threads.

    async def _do(self, command: Command) -> None:
        """Have the thread carry out a command, and wait until it has."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def run() -> None:
            try:
                command()
            except Exception as error:
                failure = _failed(error)
                _call(loop, lambda: None if done.done() else done.set_exception(failure))
            else:
                _call(loop, lambda: None if done.done() else done.set_result(None))

        self._put(run)
        await done

    def _put(self, command: Command) -> None:
        if not self._open:
            raise EngineError("the engine is not running", remedy="use it inside `async with TorchEngine(...)`")
        self._commands.put(command)

    def _check(self, request: GenerateRequest) -> None:
        vocabulary = self._model.config.vocab_size
        if not request.prompt_ids or not all(0 <= token < vocabulary for token in request.prompt_ids):
            raise EngineError(
                f"request {request.id}: the prompt must be a non-empty list of ids in 0..{vocabulary - 1}",
                remedy="render the prompt with the tokenizer of the model that is served",
            )
        if not self._open:
            raise EngineError("the engine is not running", remedy="use it inside `async with TorchEngine(...)`")

    def _check_names(self, weights: Mapping[str, Any]) -> None:
        expected = {name for name, _ in self._model.named_parameters()}
        if missing := expected - set(weights):
            raise EngineError(
                f"new weights lack {len(missing)} parameters, such as {min(missing)!r}; nothing was changed",
                remedy="pass every name of model.named_parameters()",
            )


def _failed(error: Exception) -> EngineError:
    return EngineError(
        f"the engine failed: {type(error).__name__}: {error}",
        remedy="if memory ran out, lower rollout.engine.max_batch or rollout.max_new_tokens",
    )


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Hand a result to its event loop, which may be gone by now together with everyone who waited in it."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)
