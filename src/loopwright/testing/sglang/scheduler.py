"""The process that computes. It does what it is told in order, between two steps of its batch.

If anything here raises, the whole server dies, as SGLang does: its callers see closed connections and no status.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from loopwright.models.compute import ComputeThread
from loopwright.testing.sglang.asks import GenerateAsk
from loopwright.testing.sglang.faults import AskedToDieError, Faults
from loopwright.testing.sglang.model import KvModel
from loopwright.testing.sglang.radix import RadixTree
from loopwright.testing.sglang.sequence import ABORTED, Output, SampledRequest, TakenFromQueue

Tell = Callable[[Output | TakenFromQueue], None]


@dataclass(frozen=True, slots=True)
class ServerSizes:
    """How much the server holds. `context` counts prompt and answer; `tokens` are those of its cache."""

    context: int
    tokens: int = 1 << 20
    running: int = 256


@dataclass(slots=True)
class _PendingFlush:
    answer: asyncio.Future[str]
    deadline: float


class Scheduler:
    """`tell` gets the news of requests. `paused`: by in_place or retract; an abort pause does not reach it."""

    def __init__(
        self,
        model: KvModel,
        tree: RadixTree,
        tokenizer: Any,
        compute: ComputeThread,
        sizes: ServerSizes,
        tell: Tell,
        faults: Faults,
        *,
        raw_logprobs: bool = False,
    ) -> None:
        self.model, self.tree, self.sizes = model, tree, sizes
        self.compute = compute
        self.waiting: list[SampledRequest] = []
        self.running: list[SampledRequest] = []
        self.paused = False
        self.sampled = 0
        self._tokenizer = tokenizer
        self._tell = tell
        self._faults = faults
        self._raw_logprobs = raw_logprobs
        self._random = torch.Generator().manual_seed(0)
        self._inbox: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._came = asyncio.Event()
        self._flush: _PendingFlush | None = None
        ends = model.config.eos_token_id
        self._eos = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id}

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.waiting

    def do(self, order: Callable[[], Any]) -> asyncio.Future[Any]:
        """Carry out an order after all earlier ones. It may be a coroutine function."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._inbox.append((order, answer))
        self._came.set()
        return answer

    async def run(self) -> None:
        """Serve until something raises."""
        while True:
            await self._carry_out()
            self._check_flush()
            if self.paused or self.is_idle:
                await self._wait()
            else:
                await self._step()

    # Orders

    def add(self, ask: GenerateAsk) -> None:
        room = min(self.sizes.context - 1, self.sizes.tokens) - len(ask.ids) - 1
        wanted = ask.sampling.max_new_tokens
        self.waiting.append(SampledRequest(ask, max(0, room if wanted is None else min(wanted, room))))

    def abort(self, rid: str, abort_all: bool) -> None:
        """Every request whose id begins with `rid`."""
        for sequence in [s for s in self.waiting if abort_all or s.ask.rid.startswith(rid)]:
            self.waiting.remove(sequence)
            self._tell(TakenFromQueue(sequence.ask.rid))
        for sequence in self.running:
            if abort_all or sequence.ask.rid.startswith(rid):
                sequence.to_finish = ABORTED

    def pause(self, mode: str) -> None:
        self.paused = True
        if mode == "retract":
            for sequence in self.running:
                sequence.retract()
            self.waiting += self.running
            self.running.clear()

    def go_on(self) -> None:
        self.paused = False

    def flush(self) -> bool:
        """Empty the tree, unless anything runs or waits."""
        if not self.is_idle:
            return False
        if not self._faults.keep_cache:
            self.tree.clear()
        return True

    def flush_within(self, seconds: float, answer: asyncio.Future[str]) -> None:
        """Flush as soon as nothing runs or waits. The answer is empty, or why it was not done."""
        if self._flush is not None:
            answer.set_result("Another flush_cache is already in progress.")
        elif self._faults.refuse_flush or (seconds <= 0 and not self.is_idle):
            answer.set_result("Flush cache failed.\n")
        else:
            self._flush = _PendingFlush(answer, asyncio.get_running_loop().time() + seconds)

    # The loop

    async def _carry_out(self) -> None:
        self._came.clear()
        while self._inbox:
            order, answer = self._inbox.popleft()
            result = order()
            if asyncio.iscoroutine(result):
                result = await result
            if not answer.done():
                answer.set_result(result)

    async def _wait(self) -> None:
        left = None if self._flush is None else max(0.0, self._flush.deadline - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(left):
                await self._came.wait()
        except TimeoutError:
            pass

    async def _step(self) -> None:
        room = self.sizes.running - len(self.running)
        if joining := self.waiting[: max(0, room)]:
            del self.waiting[: len(joining)]
            self.running += joining
        batch = joining or list(self.running)
        await self.compute.run(self._compute, batch)
        self.sampled += len(batch)
        if self._faults.die_after_tokens is not None and self.sampled >= self._faults.die_after_tokens:
            raise AskedToDieError
        for sequence in batch:
            sequence.check_end(self._eos, self._tokenizer)
            if sequence.finish is not None:
                self.running.remove(sequence)
                sequence.release(self.tree)
            if (news := sequence.news()) is not None:
                self._tell(news)

    def _compute(self, batch: list[SampledRequest]) -> None:
        for sequence in batch:
            sequence.step(self.model, self.tree, self._random, raw=self._raw_logprobs)

    def _check_flush(self) -> None:
        if self._flush is None:
            return
        if self.is_idle:
            self.flush()
            self._flush.answer.set_result("")
        elif asyncio.get_running_loop().time() >= self._flush.deadline:
            self._flush.answer.set_result("Timed out waiting for idle state.")
        else:
            return
        self._flush = None
