"""Writes answers while they are sampled, as long as the client reads them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from loopwright.engines.http.wire import generation_to_json, held_error_to_json
from loopwright.errors import LoopwrightError, RefusedError
from loopwright.ports import OnPart
from loopwright.serve.guard import answer_error
from loopwright.types import GenerateRequest, Generation

BEAT_SECONDS = 5.0
"""How often a stream without new tokens sends a sign of life, so that a paused engine is not taken for a dead one."""

DONE = b"data: [DONE]\n\n"

Write = Callable[[bytes], Awaitable[None]]


class GeneratingEngine(Protocol):
    """The part of a `StreamingEngine` that its callers use."""

    @property
    def version(self) -> int: ...

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation: ...

    async def abort(self, request_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Beat:
    """The sign of life of a stream without new tokens. It tells `state`, if that is not empty."""

    seconds: float = BEAT_SECONDS
    state: Callable[[], Mapping[str, Any]] = dict

    def words(self) -> bytes:
        """A comment, which every reader of server-sent events skips."""
        state = self.state()
        return b": " + _dumps(state) + b"\n\n" if state else b":\n\n"


async def write_answer(sampler: GeneratingEngine, request: GenerateRequest, write: Write) -> None:
    """Write the answer as one JSON object."""
    await write(_dumps(generation_to_json(await sampler.generate(request))))


async def write_parts(sampler: GeneratingEngine, request: GenerateRequest, beat: Beat, write: Write) -> None:
    """Write the answer as server-sent events. The last tokens come in one event with the finish reason. After anything
    was written, even a sign of life, the status has been sent, so an error is sent as an event too."""
    begun = False

    async def tell(words: bytes) -> None:
        nonlocal begun
        begun = True
        await write(words)

    arrived: asyncio.Queue[Generation | None] = asyncio.Queue()
    generating = asyncio.ensure_future(sampler.generate(request, arrived.put_nowait))
    generating.add_done_callback(lambda _: arrived.put_nowait(None))
    shown = 0
    try:
        while (part := await _next(arrived, beat, tell)) is not None:
            shown += len(part.ids)
            await tell(_event(generation_to_json(part, ended=False)))
        await tell(_event(generation_to_json(generating.result().since(shown))))
    except LoopwrightError as error:
        if not begun:
            raise
        await tell(_event(held_error_to_json(error)))
    finally:
        generating.cancel()
    await tell(DONE)


async def _next(arrived: asyncio.Queue[Generation | None], beat: Beat, write: Write) -> Generation | None:
    while True:
        try:
            async with asyncio.timeout(beat.seconds):
                return await arrived.get()
        except TimeoutError:
            await write(beat.words())


class WhileConnected(Response):
    """A response whose `work` writes its body, and is cancelled when the client goes away.

    The status is sent with the first bytes, so an error before them gets its own status. If the server ends before the
    first bytes, the client gets a 503, and may ask the next server.
    """

    def __init__(self, work: Callable[[Write], Awaitable[None]], media_type: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._work = work
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        working = asyncio.ensure_future(self._run(send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not self._started:
                self._started = True
                await answer_error(send, _ending())
            raise
        finally:
            for task in (working, leaving):
                task.cancel()
            await asyncio.wait((working, leaving))
        if not working.cancelled():
            working.result()

    async def _run(self, send: Send) -> None:
        async def write(body: bytes) -> None:
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": body, "more_body": True})

        await self._work(write)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _ending() -> RefusedError:
    return RefusedError("the engine is being ended", remedy="ask again when it was started again", status=503)


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + _dumps(body) + b"\n\n"


def _dumps(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
