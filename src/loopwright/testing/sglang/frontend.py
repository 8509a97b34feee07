"""The process that speaks HTTP: it knows requests by name, parks them in a pause, and has the label of the weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from loopwright.testing.sglang.answers import Json, ToldAnswer
from loopwright.testing.sglang.asks import GenerateAsk, RefusedValueError, SamplingParams
from loopwright.testing.sglang.faults import Faults
from loopwright.testing.sglang.scheduler import Scheduler
from loopwright.testing.sglang.sequence import Output, TakenFromQueue
from loopwright.testing.sglang.updates import Updates

Gone = Callable[[], Awaitable[bool]]
"""Whether the caller has gone away."""


@dataclass(frozen=True, slots=True)
class Times:
    """SGLang's own times, in seconds. A test makes them shorter."""

    abort_again: float = 1.0
    """A pause by abort looks so often whether all have ended."""
    look_for_caller: float = 4.0
    """So often a request that is not streamed looks whether its caller is still there."""
    abort_after_stream: float = 2.0
    """So long after a stream has ended, in any way, its name is aborted."""
    health: float = 1.0
    """A health check takes at least this long."""
    health_limit: float = 20.0


class ReadWriteLock:
    """Many readers or one writer. A waiting writer holds new readers back."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._readers = 0
        self._writers_waiting = 0
        self._writing = False

    @property
    def is_locked(self) -> bool:
        return self._writing or self._readers > 0

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._writing and not self._writers_waiting)
            self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            async with self._changed:
                self._changed.notify_all()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        async with self._changed:
            self._writers_waiting += 1
            try:
                await self._changed.wait_for(lambda: not self.is_locked)
            finally:
                self._writers_waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            self._writing = False
            async with self._changed:
                self._changed.notify_all()


@dataclass(slots=True)
class _State:
    answer: ToldAnswer
    came: asyncio.Event = field(default_factory=asyncio.Event)
    told: list[Json] = field(default_factory=list)
    finished: bool = False


class Frontend:
    """`label` and `model_path` are what /model_info tells. `connect` gives it its scheduler."""

    def __init__(
        self, tokenizer: Any, model_path: str, label: str, times: Times, faults: Faults, *, incremental: bool
    ) -> None:
        self.label, self.model_path = label, model_path
        self.tokenizer = tokenizer
        self.times = times
        self.last_heard = 0.0
        self._faults = faults
        self._incremental = incremental
        self._states: dict[str, _State] = {}
        self._paused = False
        self._left: list[GenerateAsk] = []
        """Requests that are parked, and whose callers have gone away."""
        self._pausing = asyncio.Condition()
        self._updating = ReadWriteLock()
        self._scheduler: Scheduler
        self._updates: Updates

    @property
    def names(self) -> Set[str]:
        """The requests that have not ended, also those that are parked."""
        return self._states.keys()

    def connect(self, scheduler: Scheduler, updates: Updates) -> None:
        self._scheduler, self._updates = scheduler, updates

    def tell(self, message: Output | TakenFromQueue) -> None:
        """Hear from the scheduler."""
        self.last_heard = asyncio.get_running_loop().time()
        state = self._states.get(message.rid)
        if state is None:
            return
        label = self._faults.wrong_label or self.label
        if isinstance(message, TakenFromQueue):
            told = state.answer.taken(message, label)
            state.finished = True
        else:
            told = state.answer.after(message, label)
            state.finished = message.finish is not None
        if state.finished:
            del self._states[message.rid]
        state.told.append(_with_faults(told, self._faults))
        state.came.set()

    def register(self, asks: list[GenerateAsk]) -> None:
        """Note the names of requests, as soon as they are there."""
        for ask in asks:
            if ask.rid in self._states:
                raise RefusedValueError(f"Duplicate request ID detected: {ask.rid}")
            self._states[ask.rid] = _State(ToldAnswer(ask, self.tokenizer, self._incremental))

    async def generate(self, ask: GenerateAsk, gone: Gone) -> AsyncIterator[Json]:
        """The answers to a registered request: one, or those of a stream."""
        state = self._states[ask.rid]
        try:
            await self._parked(ask)
            async with self._updating.reading():
                self._check(ask)
                self._scheduler.do(lambda: self._scheduler.add(ask))
                async for told in self._told(state, gone):
                    yield told
        except BaseException:
            # A name that is forgotten here cannot be aborted any more, and its request runs to its end.
            self._states.pop(ask.rid, None)
            raise

    def abort(self, rid: str, abort_all: bool) -> None:
        if abort_all or (rid and rid in self._states):
            self._scheduler.do(lambda: self._scheduler.abort(rid, abort_all))

    async def pause(self, mode: str) -> None:
        async with self._pausing:
            self._paused = True
            if mode != "abort":
                self._scheduler.do(lambda: self._scheduler.pause(mode))
                return
            while True:
                self.abort("", abort_all=True)
                if not self._updating.is_locked:
                    return
                await asyncio.sleep(self.times.abort_again)

    async def go_on(self) -> None:
        async with self._pausing:
            self._paused = False
            self._scheduler.do(self._scheduler.go_on)
            self._pausing.notify_all()
        for ask in self._left:
            self._scheduler.do(partial(self._scheduler.add, ask))
        self._left.clear()

    async def update(self, how: str, body: Mapping[str, Any]) -> tuple[bool, str]:
        """Change the weights. In a pause this happens at once, else when all requests have ended."""
        order = {
            "disk": self._updates.from_disk,
            "tensor": self._updates.from_tensor,
            "distributed": self._updates.from_distributed,
        }[how]
        if body.get("abort_all_requests"):
            self.abort("", abort_all=True)
        async with self._pausing:
            paused = self._paused
            if paused and how != "disk":
                success, message = await self._scheduler.do(lambda: order(body))
        if how == "disk" or not paused:
            lock: AbstractAsyncContextManager[None] = nullcontext() if paused else self._updating.writing()
            async with lock:
                success, message = await self._scheduler.do(lambda: order(body))
        if success and how == "disk":
            self.model_path = body["model_path"]
        if success and (label := body.get("weight_version")) is not None:
            self.label = self.label if self._faults.keep_label else label
            message += f" Weight version updated to {label}."
        return success, message

    async def flush(self, seconds: float) -> str:
        """Empty if it was done, else why not."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._scheduler.do(lambda: self._scheduler.flush_within(seconds, answer))
        return await answer

    async def is_well(self) -> bool:
        """Whether the scheduler says anything while a request of one token is made."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        asking = asyncio.ensure_future(self._ask_one())
        try:
            while loop.time() < began + self.times.health_limit:
                await asyncio.sleep(self.times.health)
                if self.last_heard > began:
                    return True
            return False
        finally:
            asking.cancel()

    async def _parked(self, ask: GenerateAsk) -> None:
        """Wait for the end of a pause. Nobody notices meanwhile that the caller has gone away: the request is sampled
        all the same."""
        try:
            async with self._pausing:
                await self._pausing.wait_for(lambda: not self._paused)
        except asyncio.CancelledError:
            self._left.append(ask)
            raise

    async def _ask_one(self) -> None:
        ask = GenerateAsk(
            f"HEALTH_CHECK_{id(asyncio.current_task())}", [0], SamplingParams(max_new_tokens=1, temperature=0.0)
        )
        self.register([ask])
        async for _ in self.generate(ask, _never):
            pass

    async def _told(self, state: _State, gone: Gone) -> AsyncIterator[Json]:
        stream = state.answer.ask.stream
        while True:
            try:
                async with asyncio.timeout(self.times.look_for_caller):
                    await state.came.wait()
            except TimeoutError:
                await self._leave_if(gone, state)
                continue
            told, finished = state.told, state.finished
            state.told = []
            state.came.clear()
            answer = _joined(told) if stream and self._incremental else told[-1]
            if finished:
                yield answer
                return
            if stream:
                yield answer
            else:
                await self._leave_if(gone, state)

    async def _leave_if(self, gone: Gone, state: _State) -> None:
        if not state.answer.ask.stream and await gone():
            self.abort(state.answer.ask.rid, abort_all=False)
            raise RefusedValueError("Request is disconnected from the client side.")

    def _check(self, ask: GenerateAsk) -> None:
        tokens, new, context = len(ask.ids), ask.sampling.max_new_tokens, self._scheduler.sizes.context
        if tokens >= context:
            raise RefusedValueError(
                f"The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."
            )
        if new is not None and tokens + new > context:
            raise RefusedValueError(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested "
                f"a total of {tokens + new} tokens: {tokens} tokens from the input messages and {new} tokens for the "
                "completion. Please reduce the number of tokens in the input messages or the completion to fit within "
                "the limit."
            )
        if ask.return_logprob and ask.logprob_start_len > tokens:
            raise RefusedValueError(
                f"req.logprob_start_len={ask.logprob_start_len} is higher than the number of input tokens {tokens}. "
                "Please use a smaller logprob_start_len."
            )


def _joined(told: list[Json]) -> Json:
    """Several parts of an incremental stream as one."""
    last = told[-1]
    meta = dict(last["meta_info"])
    for name in ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs"):
        if name in meta:
            meta[name] = [one for part in told for one in part["meta_info"][name]]
    texts, ids = "".join(part["text"] for part in told), [one for part in told for one in part["output_ids"]]
    return {**last, "text": texts, "output_ids": ids, "meta_info": meta}


def _with_faults(told: Json, faults: Faults) -> Json:
    meta = told["meta_info"]
    if faults.wrong_logprobs and meta.get("output_token_logprobs"):
        logprobs = meta["output_token_logprobs"]
        more = [[-1.0, 0, None]] * faults.wrong_logprobs
        meta["output_token_logprobs"] = (
            logprobs + more if faults.wrong_logprobs > 0 else logprobs[: faults.wrong_logprobs]
        )
    return told


async def _never() -> bool:
    return False
