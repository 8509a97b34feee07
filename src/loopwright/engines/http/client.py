"""An engine of ours that runs somewhere else (`loopwright engine`, or a run's door), behind HTTP.

Cancelling a call closes its connection, and the server then ends the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Self

from loopwright.core.partial_answer import joined
from loopwright.engines.http.caller import KINDS, SILENCE_SECONDS, EngineCaller, broke_off
from loopwright.engines.http.connection import Connections
from loopwright.engines.http.model_card import MODELS, ModelCard, card_from_json
from loopwright.engines.http.wire import (
    GENERATE,
    HELD_SECONDS,
    PROBE,
    answer_read,
    generation_from_json,
    probe_from_json,
    request_to_json,
    update_to_json,
)
from loopwright.errors import EngineError, LoopwrightError
from loopwright.ports import Exchanges, OnPart
from loopwright.serve.lease import INSTANCE_HEADER, LEASE, LeaseHolder, lease_to_json
from loopwright.types import (
    IN_PLACE,
    UNKNOWN_CAPACITY,
    EngineCapacity,
    GenerateRequest,
    Generation,
    PauseMode,
    ProbeAnswer,
    WeightUpdate,
)

MODES = {PauseMode.DRAIN: "wait", PauseMode.ABORT: "abort", PauseMode.KEEP: "keep"}


class HttpEngine:
    """A `StreamingEngine` over HTTP. `connect` makes it."""

    def __init__(
        self,
        connections: Exchanges,
        version: int,
        silence_seconds: float = SILENCE_SECONDS,
        kinds: Mapping[str, type[LoopwrightError]] = KINDS,
    ) -> None:
        self._connections = connections
        self._caller = EngineCaller(connections, silence_seconds, self._hear, kinds)
        self._version = version
        self._held: float | None = None
        self._is_leased = False

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, url: str, key: str | None, *, silence_seconds: float = SILENCE_SECONDS
    ) -> AsyncIterator[Self]:
        """The engine at `url`."""
        with Connections(url, key) as connections:
            yield await cls.over(connections, silence_seconds)

    @classmethod
    async def over(cls, connections: Exchanges, silence_seconds: float = SILENCE_SECONDS) -> Self:
        """The engine that is reached in this way."""
        engine = cls(connections, 0, silence_seconds)
        state = await engine._caller.command("GET", "/version")
        if not isinstance(state, dict) or not isinstance(state.get("version"), int):
            raise EngineError(
                f"the server at {connections.url} is no engine of ours: its version of the weights is "
                f"{str(state)[:80]}",
                remedy="say which kind it is: `kind` of rollout.engine, or --engine-kind (vllm, sglang)",
            )
        engine._hear(state)
        return engine

    @property
    def version(self) -> int:
        return self._version

    @property
    def workers(self) -> int:
        """One process receives weights."""
        return 1

    def held_seconds(self) -> float:
        """For how many seconds in total the engines behind a run's door have answered nobody, as far as the door has
        told: while a call is out, it tells this once a second. 0 for an engine, which does not count them."""
        return self._held or 0.0

    @asynccontextmanager
    async def hearing(self, seconds: float) -> AsyncIterator[None]:
        """Inside this block, the other side is asked for its version and its held seconds so often, also while no call
        is out. Otherwise the next call would seem to be held for all the seconds since the last one."""
        listening = asyncio.create_task(self._keep_hearing(seconds), name=f"hearing {self._caller.url}")
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.wait((listening,))

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        """Without `on_part` an engine's answer comes in one piece, which costs both sides less. A door's answer is
        always streamed, because of what it tells while the call is out."""
        streams = on_part is not None or self._held is not None
        body = {**request_to_json(request), "stream": streams}
        if streams:
            return await self._streamed(request, body, on_part or (lambda part: None))
        said = await self._caller.asked("POST", GENERATE, body, self._caller.patience)
        with answer_read():
            return generation_from_json(said, request)[0]

    async def model(self) -> ModelCard:
        """Which model is served."""
        return card_from_json(await self._caller.command("GET", MODELS))

    async def capacity(self) -> EngineCapacity:
        """It does not say."""
        return UNKNOWN_CAPACITY

    async def abort(self, request_id: str) -> None:
        await self._caller.command("POST", "/abort_requests", {"request_ids": [request_id]})

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        await self._caller.command("POST", f"/pause?mode={MODES[mode]}")

    async def resume(self) -> None:
        await self._caller.command("POST", "/resume")

    async def load(self, version: int, update: WeightUpdate = IN_PLACE) -> None:
        await self._caller.command("POST", "/weights", update_to_json(version, update))
        self._version = version

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        with answer_read():
            return probe_from_json(await self._caller.command("POST", PROBE, request_to_json(request)))

    async def lease(self, holder: LeaseHolder, seconds: float) -> None:
        """Take or renew the lease on the engine's weights. From then on all requests are those of `holder`, and are for
        this start of the server only: if it is started again, it counts as lost.

        Raises LeaseError if another run has it.
        """
        taken = await self._caller.asked("POST", LEASE, lease_to_json(holder, seconds), self._caller.little_patience)
        if not self._is_leased:
            self._is_leased = True
            self._connections.add_headers({**holder.headers(), INSTANCE_HEADER: str(taken.get("instance"))})

    async def release(self) -> None:
        """Give the lease back."""
        await self._caller.asked("DELETE", LEASE, None, self._caller.little_patience)

    async def hear_state(self) -> None:
        """Ask the other side for its version and its held seconds."""
        self._hear(await self._caller.asked("GET", "/version", None, self._caller.little_patience))

    async def _keep_hearing(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            # If it cannot be reached, the next call says so.
            with suppress(LoopwrightError):
                await self.hear_state()

    async def _streamed(self, request: GenerateRequest, body: Mapping[str, Any], on_part: OnPart) -> Generation:
        parts: list[Generation] = []
        async with self._caller.stream(GENERATE, body) as events:
            async for is_event, said in events:
                if not is_event:
                    self._hear(said)
                    continue
                with answer_read():
                    part, ended = generation_from_json(said, request)
                parts.append(part)
                if ended:
                    return self._ended(joined(parts), part.held)
                on_part(part)
        raise broke_off()

    def _ended(self, answer: Generation, held: tuple[float, float] | None) -> Generation:
        if held is None:
            return answer
        self._hear({HELD_SECONDS: held[1], "version": answer.versions[-1] if answer.versions else None})
        return replace(answer, held=held)

    def _hear(self, state: Mapping[str, Any]) -> None:
        """Take what the other side says of itself."""
        match state.get("version"):
            case int() as version:
                self._version = version
        match state.get(HELD_SECONDS):
            case int() | float() as seconds:
                self._held = max(self._held or 0.0, float(seconds))
