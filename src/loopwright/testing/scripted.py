"""An engine with scripted answers and scripted failures.

It keeps the promises of an engine: one logprob and one version per token, a cut at `max_new_tokens`, a pause that holds
new requests, and an abort that returns what was "sampled" so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from loopwright.engines.pause_gate import PauseGate
from loopwright.errors import EngineError
from loopwright.ports import OnPart, PauseMode
from loopwright.testing.chars import encode_chars
from loopwright.types import IN_PLACE, NOTHING_YET, FinishReason, GenerateRequest, Generation, ProbeAnswer, WeightUpdate
from loopwright.types.sampling import Likeliest

Answer = str | Sequence[int]
"""The exact ids, or a text that the engine encodes."""

LOGPROB = -0.5
"""The logprob of every scripted token."""


class ScriptedEngine:
    """A `StreamingEngine` and a `Lockstep` for tests.

    `answers` is a function of the request, or a sequence that is repeated in the order of the calls. `faults` are the
    numbers of the calls (from 0) that raise EngineError. Each token takes `steps` turns of the event loop, so that
    concurrent requests really overlap. `seconds` says how long the whole answer to a request takes. A request that
    continues earlier tokens gets the rest of its answer. `requests` and `expected` record the calls.
    """

    def __init__(
        self,
        answers: Callable[[GenerateRequest], Answer] | Sequence[Answer],
        *,
        encode: Callable[[str], Sequence[int]] = encode_chars,
        faults: Collection[int] = (),
        steps: int = 0,
        seconds: Callable[[GenerateRequest], float] | None = None,
        version: int = 0,
    ) -> None:
        self._answers = answers
        self._encode = encode
        self._faults = frozenset(faults)
        self._steps = steps
        self._seconds = seconds
        self._version = version
        self._gate = PauseGate()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._live: dict[str, asyncio.Event] = {}
        """The running requests, each with an event that is set when it is aborted."""
        self.requests: list[GenerateRequest] = []
        self.expected: list[int] = []
        self.most_live = 0

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        number = len(self.requests)
        self.requests.append(request)
        if not await self._gate.admit(request):
            return NOTHING_YET
        if number in self._faults:
            raise EngineError(f"scripted fault at call {number}", remedy="none: the test asked for it")
        aborted = self._live[request.id] = asyncio.Event()
        self._idle.clear()
        self.most_live = max(self.most_live, len(self._live))
        try:
            return await self._sample(request, number, aborted, on_part or (lambda part: None))
        finally:
            del self._live[request.id]
            if not self._live:
                self._idle.set()

    async def abort(self, request_id: str) -> None:
        self._gate.abort(request_id)
        if request_id in self._live:
            self._live[request_id].set()

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        self._gate.close()
        if mode is PauseMode.ABORT:
            for aborted in self._live.values():
                aborted.set()
        if mode is PauseMode.KEEP:
            self._thawed.clear()
        else:
            await self._idle.wait()

    async def resume(self) -> None:
        self._thawed.set()
        self._gate.open()

    async def load(self, version: int, update: WeightUpdate = IN_PLACE) -> None:
        self._version = version

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        """Every token has the same logprob, so this proves nothing."""
        ids, tokens = self._answer(0, request), request.sampling.max_new_tokens
        sampled = Generation(
            ids[:tokens], (LOGPROB,) * len(ids[:tokens]), (self._version,) * len(ids[:tokens]), FinishReason.LENGTH
        )
        return ProbeAnswer((LOGPROB,) * (len(request.prompt_ids) - 1), sampled)

    def expect(self, callers: int) -> None:
        self.expected.append(callers)

    def _answer(self, number: int, request: GenerateRequest) -> tuple[int, ...]:
        answer = self._answers(request) if callable(self._answers) else self._answers[number % len(self._answers)]
        return tuple(self._encode(answer) if isinstance(answer, str) else answer)

    async def _sample(
        self, request: GenerateRequest, number: int, aborted: asyncio.Event, on_part: OnPart
    ) -> Generation:
        before = request.sampled_before
        first = replace(request, prompt_ids=request.prompt_ids[: len(request.prompt_ids) - before], sampled_before=0)
        whole = self._answer(number, first)
        pace = self._seconds(first) / len(whole) if self._seconds else None
        script, versions, finish = whole[before:], list[int](), FinishReason.STOP
        for _ in script:
            if len(versions) == request.sampling.max_new_tokens:
                finish = FinishReason.LENGTH
                break
            await self._wait(pace, aborted)
            if aborted.is_set():
                finish = FinishReason.ABORT
                break
            told = _likeliest(request, script[len(versions) : len(versions) + 1])
            part = (script[len(versions)],), (LOGPROB,), (self._version,)
            on_part(Generation(*part, FinishReason.ABORT, alternatives=told))
            versions.append(self._version)
        count = len(versions)
        told = _likeliest(request, script[:count])
        return Generation(script[:count], (LOGPROB,) * count, tuple(versions), finish, alternatives=told)

    async def _wait(self, pace: float | None, aborted: asyncio.Event) -> None:
        """Wait the time of one token: longer while the engine is frozen, shorter if the request is aborted."""
        for _ in range(self._steps):
            await asyncio.sleep(0)
        if pace is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(pace):
                    await aborted.wait()
        await self._thawed.wait()


def _likeliest(request: GenerateRequest, ids: tuple[int, ...]) -> tuple[Likeliest, ...]:
    """The script knows no other token than its own."""
    return tuple(((token, LOGPROB),) for token in ids) if request.alternatives else ()
