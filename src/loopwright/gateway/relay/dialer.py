"""Keeps a worker connected to its gateway: it dials out, and dials again whenever the connection is gone.

The pauses between two tries grow, and begin anew after a connection that lasted. A gateway that is away is tried for
ever. One that refuses the worker for a reason that stays raises RefusedError.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from loopwright.errors import RefusedError
from loopwright.gateway.relay.answering import Answering
from loopwright.gateway.relay.endpoint import BEAT_SECONDS, RELAY_PATH, SILENCE_SECONDS
from loopwright.gateway.relay.frames import MAX_FRAME_BYTES, FrameType, RelayFrame, frame_in, protocol_broken
from loopwright.gateway.relay.hello import Hello, may_pass, refusal_of
from loopwright.serve.errors import read_error
from loopwright.serve.guard import App

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
STEADY_SECONDS = 5.0
"""A connection that lasted so long was a good one, and the pauses begin anew."""
OPEN_SECONDS = 10.0
WELCOME_SECONDS = 120.0
"""How long a gateway may take to accept the worker. It may have to load a tokenizer first."""
CLOSE_SECONDS = 1.0

log = logging.getLogger("loopwright")


async def _never() -> None:
    await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class Dial:
    """Whom a worker dials, and what it offers there. `hello` is asked before every try, and may wait until there is
    something to offer. A connection is closed when `gone` returns: the worker cannot answer any more."""

    url: str
    key: str = field(repr=False)
    app: App
    hello: Callable[[], Awaitable[Hello]]
    gone: Callable[[], Awaitable[None]] = _never
    on_connected: Callable[[], object] = lambda: None


async def keep_dialled(dial: Dial) -> None:
    """Keep the worker connected until this is cancelled."""
    loop, pause, told = asyncio.get_running_loop(), FIRST_PAUSE_SECONDS, ""
    while True:
        connected_at: float | None = None

        def connected() -> None:
            nonlocal connected_at
            connected_at = loop.time()
            log.info("connected to the gateway at %s", dial.url)
            dial.on_connected()

        hello = await dial.hello()
        try:
            why = await _connection(dial, hello, connected)
        except InvalidStatus as error:
            if not may_pass(refusal := _denied(dial.url, error)):
                raise refusal from error
            why = refusal.message
        except RefusedError as refusal:
            if not may_pass(refusal):
                raise
            why = refusal.message
        except (OSError, TimeoutError, WebSocketException) as error:
            why = f"{type(error).__name__} {error}".rstrip()
        if connected_at is not None:
            told = ""
            if loop.time() - connected_at >= STEADY_SECONDS:
                pause = FIRST_PAUSE_SECONDS
        if why != told:
            log.warning("not connected to the gateway at %s: %s", dial.url, why)
        told = why
        # Workers that lost their gateway together do not come back together.
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _connection(dial: Dial, hello: Hello, connected: Callable[[], None]) -> str:
    """Serve the gateway over one connection until it ends. Returns why it ended."""
    async with _connecting(dial) as socket:
        await socket.send(hello.frame().encoded())
        async with asyncio.timeout(WELCOME_SECONDS):
            first = frame_in(await socket.recv())
        if first.type is FrameType.REFUSED:
            raise refusal_of(first.words)
        if first.type is not FrameType.WELCOME:
            raise protocol_broken(f"the gateway began with {first.type.name}")
        connected()

        async def send(frame: RelayFrame) -> None:
            # Whoever answers is told by the end of the connection, not by every single frame.
            with suppress(ConnectionClosed):
                await socket.send(frame.encoded())

        answering = Answering(dial.app, send)
        reading = asyncio.ensure_future(_read(socket, answering))
        tasks = [reading, asyncio.ensure_future(dial.gone())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else "the engine is gone"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            # First, so that the gateway need not wait for what the app has to clean up.
            await socket.close()
            await answering.close()


class _Connect(connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        # The key is for the gateway that was named, and for no other.
        return exc


def _connecting(dial: Dial) -> _Connect:
    return _Connect(
        "ws" + dial.url.rstrip("/").removeprefix("http") + RELAY_PATH,
        additional_headers={"authorization": f"Bearer {dial.key}"},
        compression=None,
        max_size=MAX_FRAME_BYTES,
        open_timeout=OPEN_SECONDS,
        close_timeout=CLOSE_SECONDS,
        ping_interval=BEAT_SECONDS,
        ping_timeout=SILENCE_SECONDS,
        # Whatever proxy the environment names: a run reaches its gateway without one too.
        proxy=None,
    )


async def _read(socket: ClientConnection, answering: Answering) -> str:
    try:
        async for message in socket:
            answering.hear(frame_in(message))
    except RefusedError as error:
        return error.message
    except ConnectionClosed as closed:
        return str(closed)
    return f"it closed the connection: {socket.close_reason or 'without a reason'}"


def _denied(url: str, error: InvalidStatus) -> RefusedError:
    """Why a gateway did not open the WebSocket."""
    status = error.response.status_code
    try:
        said = orjson.loads(error.response.body or b"")
    except orjson.JSONDecodeError:
        said = None
    message, remedy = "no WebSocket is there", "start that gateway with `loopwright gateway --relay`"
    if isinstance(said, dict) and isinstance(said.get("error"), dict):
        told = read_error(said, {}, RefusedError)
        message, remedy = told.message, told.remedy
    return RefusedError(f"the gateway at {url} answered {status}: {message}", remedy=remedy, status=status)
