"""Asks a server of an engine, whatever its dialect is.

Every wait has a deadline: if an engine sends nothing for too long, its `/health` is asked, and the engine counts as
lost if it does not answer that either. An engine that cannot be reached raises EngineLostError. An error that the
server reports is raised here as the same error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson

from loopwright.engines.http.connection import LostError, Patience
from loopwright.engines.http.wire import HELD, held_from_json
from loopwright.errors import (
    AlternativesError,
    ConstraintError,
    EngineError,
    EngineLostError,
    LeaseError,
    LoopwrightError,
    OutOfTimeError,
    UnanswerableError,
    WeightsError,
)
from loopwright.ports import Exchanges, ServerAnswer
from loopwright.serve.errors import SEE_LOG, read_error

SILENCE_SECONDS = 60.0
"""How long an engine may send nothing at all before its `/health` is asked."""
HEALTH_SECONDS = 10.0
COMMAND_SECONDS = 600.0
"""How long a pause (which may have to drain) or a load may take."""
OK = 200
NOT_THERE = frozenset({502, 503, 504})
"""The statuses with which a proxy answers while the engine behind it is away."""
HELD_BY_ANOTHER = 409
NO_ENGINE_CAN = frozenset({400, 413, 422})
"""The statuses with which a server says that the request is at fault."""
KINDS: Mapping[str, type[LoopwrightError]] = {
    "WeightsError": WeightsError,
    "OutOfTimeError": OutOfTimeError,
    "UnanswerableError": UnanswerableError,
    "ConstraintError": ConstraintError,
    "AlternativesError": AlternativesError,
}
"""A door that reports a lost engine has already tried others, so that is no EngineLostError here."""
KINDS_OF_WORKER: Mapping[str, type[LoopwrightError]] = {**KINDS, "EngineLostError": EngineLostError}
"""A relay's worker has one engine. If that is lost to one call, the call goes on from its tokens."""


class EngineCaller:
    """Requests to the engine behind `connections`. `on_health` gets what its `/health` says. `kinds` are the errors
    that are raised here as they were reported."""

    def __init__(
        self,
        connections: Exchanges,
        silence_seconds: float = SILENCE_SECONDS,
        on_health: Callable[[Mapping[str, Any]], None] = lambda state: None,
        kinds: Mapping[str, type[LoopwrightError]] = KINDS,
    ) -> None:
        self._connections = connections
        self._on_health = on_health
        self._kinds = kinds
        self.patience = Patience(silence_seconds, self._check_health)
        self.little_patience = Patience(min(silence_seconds, HEALTH_SECONDS))

    @property
    def url(self) -> str:
        return self._connections.url

    async def command(self, method: str, path: str, body: Any = None) -> Any:
        return await self.asked(method, path, body, Patience(COMMAND_SECONDS))

    async def asked(self, method: str, path: str, body: Any, patience: Patience) -> Any:
        """The engine's whole answer."""
        return engine_json(await self.text(method, path, body, patience))

    async def text(self, method: str, path: str, body: Any, patience: Patience) -> bytes:
        """The engine's whole answer, which may be no JSON."""
        sent = b"" if body is None else orjson.dumps(body)
        try:
            status, text = await self._connections.whole(method, path, sent, patience)
        except LostError as error:
            raise self._lost(error) from error
        self._check(status, text)
        return text

    @asynccontextmanager
    async def stream(self, path: str, body: Any) -> AsyncIterator[AsyncIterator[tuple[bool, Any]]]:
        """Ask for a stream. Gives its events and the states in comments, as they come; the first of a pair says whether
        it is an event. An event that is an error is raised."""
        try:
            async with self._connections.ask("POST", path, orjson.dumps(body), self.patience) as answer:
                self._check(answer.status, b"" if answer.status == OK else await answer.read())
                yield self._events(answer)
        except LostError as error:
            raise self._lost(error) from error

    async def _check_health(self) -> None:
        """Ask `/health`. An engine that is paused or busy may be silent for long, and one that is gone is silent
        too."""
        status, text = await self._connections.whole("GET", "/health", b"", self.little_patience)
        if status != OK:
            raise LostError(f"it is not well: /health is answered with {status}")
        # Another server than ours may answer with nothing.
        self._on_health(engine_json(text) if text else {})

    async def _events(self, answer: ServerAnswer) -> AsyncIterator[tuple[bool, Any]]:
        begun = b""
        while more := await answer.more():
            *lines, begun = (begun + more).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    said = engine_json(line[len(b"data: ") :])
                    if "error" in said:
                        # vLLM checks a streamed request after it has begun its answer.
                        raise self._error(said, UnanswerableError if _blames(said) else EngineError)
                    yield True, said
                elif line.startswith(b": {"):
                    yield False, engine_json(line[len(b": ") :])

    def _check(self, status: int, text: bytes) -> None:
        """Raise the error that an unsuccessful answer reports."""
        if status in NOT_THERE:
            raise EngineLostError(
                f"the engine is not there: status {status}", remedy="see whether its process is running"
            )
        if status == HELD_BY_ANOTHER:
            raise read_error(_said(text), {}, LeaseError)
        if status != OK:
            raise self._error(_said(text), UnanswerableError if status in NO_ENGINE_CAN else EngineError)

    def _error(self, said: Any, otherwise: type[EngineError] = EngineError) -> LoopwrightError:
        error = read_error(said, self._kinds, otherwise)
        if isinstance(said, dict) and (held := held_from_json(said)) is not None:
            error.facts[HELD] = held
        return error

    def _lost(self, error: LostError) -> EngineLostError:
        return EngineLostError(
            f"the engine at {self.url} cannot be reached: {error}",
            remedy="see whether its process is running, and what its log says",
        )


def broke_off() -> EngineLostError:
    """A stream has ended before its answer."""
    return EngineLostError("the answer broke off", remedy="nothing to do: it goes on from the tokens that came")


def engine_json(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"the engine's answer is no JSON: {error}", remedy=SEE_LOG) from error


def _blames(said: Any) -> bool:
    """Whether an error in a stream says that the request is at fault. Its status was sent before."""
    code = said["error"].get("code") if isinstance(said["error"], dict) else None
    return isinstance(code, int) and code in NO_ENGINE_CAN


def _said(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.decode(errors="replace")
