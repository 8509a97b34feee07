"""An engine that runs somewhere else, behind HTTP.

Every wait has a deadline: if an engine sends nothing for too long, its `/health` is asked, and the engine counts as
lost if it does not answer that either. An engine that cannot be reached raises EngineLostError. An error that the
server reports is raised here as the same error. Cancelling a call closes its connection, and the server then ends the
request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

import orjson

from loopwright.core.partial_answer import joined
from loopwright.engines.http.connection import Connections, LostError, Patience, ResponseConnection
from loopwright.engines.http.model_card import MODELS, ModelCard, card_from_json
from loopwright.engines.http.wire import (
    GENERATE,
    HELD,
    HELD_SECONDS,
    generation_from_json,
    held_from_json,
    request_to_json,
    weights_to_json,
)
from loopwright.errors import (
    EngineError,
    EngineLostError,
    LeaseError,
    LoopwrightError,
    OutOfTimeError,
    RefusedError,
    WeightsError,
)
from loopwright.ports import OnPart
from loopwright.serve.errors import SEE_LOG, read_error
from loopwright.serve.lease import INSTANCE_HEADER, LEASE, LeaseHolder, lease_to_json
from loopwright.types import GenerateRequest, Generation, PauseMode, WeightFile

SILENCE_SECONDS = 60.0
"""How long an engine may send nothing at all before its `/health` is asked."""
HEALTH_SECONDS = 10.0
COMMAND_SECONDS = 600.0
"""How long a pause (which may have to drain) or a load may take."""
OK = 200
NOT_THERE = frozenset({502, 503, 504})
"""The statuses with which a proxy answers while the engine behind it is away."""

BAD_REQUEST = 400
HELD_BY_ANOTHER = 409
KINDS: Mapping[str, type[LoopwrightError]] = {"WeightsError": WeightsError, "OutOfTimeError": OutOfTimeError}
MODES = {PauseMode.DRAIN: "wait", PauseMode.ABORT: "abort", PauseMode.KEEP: "keep"}


class HttpEngine:
    """A `StreamingEngine` over HTTP. `connect` makes it."""

    def __init__(self, connections: Connections, version: int, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._connections = connections
        self._version = version
        self._keeps_seeds = True
        self._held: float | None = None
        self._is_leased = False
        self._patience = Patience(silence_seconds, self._check_health)
        self._little_patience = Patience(min(silence_seconds, HEALTH_SECONDS))

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, url: str, key: str | None, *, silence_seconds: float = SILENCE_SECONDS
    ) -> AsyncIterator[Self]:
        """The engine at `url`."""
        connections = Connections(url, key)
        try:
            engine = cls(connections, 0, silence_seconds)
            state = await engine._command("GET", "/version")
            # vLLM reports its release here instead. The weights that it was started with are version 0.
            engine._keeps_seeds = isinstance(state["version"], int)
            engine._hear(state)
            yield engine
        finally:
            connections.close()

    @property
    def version(self) -> int:
        return self._version

    def held_seconds(self) -> float:
        """For how many seconds in total the engines behind a run's door have answered nobody, as far as the door has
        told: while a call is out, it tells this once a second. 0 for an engine, which does not count them."""
        return self._held or 0.0

    @asynccontextmanager
    async def hearing(self, seconds: float) -> AsyncIterator[None]:
        """Inside this block, the other side is asked for its version and its held seconds so often, also while no call
        is out. Otherwise the next call would seem to be held for all the seconds since the last one."""
        listening = asyncio.create_task(self._keep_hearing(seconds), name=f"hearing {self._connections.url}")
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.wait((listening,))

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        """Without `on_part` an engine's answer comes in one piece, which costs both sides less. A door's answer is
        always streamed, because of what it tells while the call is out."""
        # What vLLM samples depends on its batch even with a seed, and its CPU build dies of several seeded requests.
        streams = on_part is not None or self._held is not None
        body = {**request_to_json(request, seeded=self._keeps_seeds), "stream": streams}
        if not streams:
            return _generation(await self._asked("POST", GENERATE, body, self._patience))[0]
        try:
            async with self._connections.ask("POST", GENERATE, orjson.dumps(body), self._patience) as answer:
                _check(answer.status, b"" if answer.status == OK else await answer.read())
                return await self._streamed(answer, on_part or (lambda part: None))
        except LostError as error:
            raise self._lost(error) from error

    async def model(self) -> ModelCard:
        """Which model is served."""
        return card_from_json(await self._command("GET", MODELS))

    async def abort(self, request_id: str) -> None:
        await self._command("POST", "/abort_requests", {"request_ids": [request_id]})

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        await self._command("POST", f"/pause?mode={MODES[mode]}")

    async def resume(self) -> None:
        await self._command("POST", "/resume")

    async def load(self, version: int, weights: Mapping[str, Any] | WeightFile | None = None) -> None:
        if weights is not None and not isinstance(weights, WeightFile):
            raise EngineError(
                "tensors cannot be sent to an engine in another process", remedy="publish them as a WeightFile"
            )
        await self._command("POST", "/weights", weights_to_json(version, weights))
        self._version = version

    async def lease(self, holder: LeaseHolder, seconds: float) -> None:
        """Take or renew the lease on the engine's weights. From then on all requests are those of `holder`, and are for
        this start of the server only: if it is started again, it counts as lost.

        Raises LeaseError if another run has it.
        """
        taken = await self._asked("POST", LEASE, lease_to_json(holder, seconds), self._little_patience)
        if not self._is_leased:
            self._is_leased = True
            self._connections.add_headers({**holder.headers(), INSTANCE_HEADER: str(taken.get("instance"))})

    async def release(self) -> None:
        """Give the lease back."""
        await self._asked("DELETE", LEASE, None, self._little_patience)

    async def _command(self, method: str, path: str, body: Any = None) -> Any:
        return await self._asked(method, path, body, Patience(COMMAND_SECONDS))

    async def _keep_hearing(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            # If it cannot be reached, the next call says so.
            with suppress(LoopwrightError):
                self._hear(await self._asked("GET", "/version", None, self._little_patience))

    async def _check_health(self) -> None:
        """Ask `/health`. An engine that is paused or busy may be silent for long, and one that is gone is silent
        too."""
        status, text = await self._connections.whole("GET", "/health", b"", self._little_patience)
        if status != OK:
            raise LostError(f"it is not well: /health is answered with {status}")
        # Another server than ours may answer with nothing.
        self._hear(_read(text) if text else {})

    async def _asked(self, method: str, path: str, body: Any, patience: Patience) -> Any:
        """The engine's whole answer."""
        sent = b"" if body is None else orjson.dumps(body)
        try:
            status, text = await self._connections.whole(method, path, sent, patience)
        except LostError as error:
            raise self._lost(error) from error
        _check(status, text)
        return _read(text)

    async def _streamed(self, answer: ResponseConnection, on_part: OnPart) -> Generation:
        parts: list[Generation] = []
        tokens = 0
        async for is_event, said in _events(answer):
            if not is_event:
                self._hear(said)
                continue
            if "error" in said:
                raise _error(said)
            part, ended = _generation(said, before=tokens)
            parts.append(part)
            tokens += len(part.ids)
            if ended:
                return self._ended(joined(parts), part.held)
            on_part(part)
        raise EngineLostError("the answer broke off", remedy="nothing to do: it goes on from the tokens that came")

    def _ended(self, answer: Generation, held: tuple[float, float] | None) -> Generation:
        if held is None:
            return answer
        self._hear({HELD_SECONDS: held[1], "version": answer.versions[-1] if answer.versions else None})
        return Generation(answer.ids, answer.logprobs, answer.versions, answer.finish, held)

    def _hear(self, state: Mapping[str, Any]) -> None:
        """Take what the other side says of itself."""
        match state.get("version"):
            case int() as version:
                self._version = version
        match state.get(HELD_SECONDS):
            case int() | float() as seconds:
                self._held = max(self._held or 0.0, float(seconds))

    def _lost(self, error: LostError) -> EngineLostError:
        return EngineLostError(
            f"the engine at {self._connections.url} cannot be reached: {error}",
            remedy="see whether its process is running, and what its log says",
        )


async def _events(answer: ResponseConnection) -> AsyncIterator[tuple[bool, Any]]:
    """Server-sent events and the states in comments, as they come. The first of a pair says whether it is an event."""
    begun = b""
    while more := await answer.more():
        *lines, begun = (begun + more).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                yield True, _read(line[len(b"data: ") :])
            elif line.startswith(b": {"):
                yield False, _read(line[len(b": ") :])


def _generation(body: Any, before: int = 0) -> tuple[Generation, bool]:
    try:
        return generation_from_json(body, before=before)
    except RefusedError as error:
        # The engine's answer is wrong, not the caller's request.
        raise EngineError(f"the engine's answer cannot be read: {error.message}", remedy=error.remedy) from error


def _read(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"the engine's answer is no JSON: {error}", remedy=SEE_LOG) from error


def _check(status: int, text: bytes) -> None:
    """Raise the error that an unsuccessful answer reports."""
    if status in NOT_THERE:
        raise EngineLostError(f"the engine is not there: status {status}", remedy="see whether its process is running")
    if status == HELD_BY_ANOTHER:
        raise read_error(_said(text), {}, LeaseError)
    if status != OK:
        error = _error(_said(text))
        if status == BAD_REQUEST:
            # The caller's fault stays one where this engine is served to others.
            error.facts["status"] = status
        raise error


def _said(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.decode(errors="replace")


def _error(said: Any) -> LoopwrightError:
    error = read_error(said, KINDS, EngineError)
    if isinstance(said, dict) and (held := held_from_json(said)) is not None:
        error.facts[HELD] = held
    return error
