"""Where workers connect to a gateway: the WebSocket at `/relay`, in front of the gateway's own app.

Only the gateway's key opens it (S3). A connection that breaks the protocol is closed with its reason, and no other
connection notices.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from loopwright.errors import LoopwrightError, RefusedError
from loopwright.gateway.relay.frames import MAX_FRAME_BYTES, FrameType, RelayFrame, frame_in
from loopwright.gateway.relay.hello import Hello, hello_of, refusal_frame
from loopwright.gateway.relay.link import Link
from loopwright.gateway.relay.workers import RelayedWorker, RelayedWorkers
from loopwright.serve.guard import App, Receive, Scope, Send, answer_error, denial
from loopwright.serve.listen import WebSockets

RELAY_PATH = "/relay"
BEAT_SECONDS = 5.0
SILENCE_SECONDS = 15.0
"""Both sides ping each other so often, and give the connection up after so many seconds without an answer."""
RELAY_SOCKETS = WebSockets(MAX_FRAME_BYTES, BEAT_SECONDS, SILENCE_SECONDS)
HELLO_SECONDS = 10.0
CLOSE_SECONDS = 1.0
REFUSED_CODE, CLOSED_CODE = 4000, 4001
"""The codes with which a worker is refused, and with which the connection of another one is closed."""
LONGEST_REASON = 120
"""The bytes of a reason that fit into the closing frame of a WebSocket."""

log = logging.getLogger("loopwright")

Admit = Callable[[Hello, RelayedWorker], Awaitable[None]]
"""Raises LoopwrightError if the gateway does not take the worker."""


class RelayEndpoint:
    """An ASGI app in front of `app`, which gets all HTTP. `admit` decides which workers are taken."""

    def __init__(self, app: App, workers: RelayedWorkers, admit: Admit, *, key: str) -> None:
        self._app = app
        self._workers = workers
        self._admit = admit
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except RefusedError as refused:
            await answer_error(denial(send), refused)
            return
        # The first message says that somebody wants to connect.
        await receive()
        await send({"type": "websocket.accept"})
        with suppress(OSError):
            # It may be gone at any moment, and nobody is left to be told.
            await self._serve(receive, send)

    def _check(self, scope: Scope) -> None:
        if "/".join(filter(None, scope["path"].split("/"))) != RELAY_PATH.strip("/"):
            raise RefusedError(
                f"there is no WebSocket at {scope['path']:.200}", remedy="use HTTP; workers use /relay", status=404
            )
        if not hmac.compare_digest(dict(scope["headers"]).get(b"authorization", b""), self._expected):
            raise RefusedError(
                "the key is missing or wrong",
                remedy="send the gateway's key as `authorization: Bearer KEY`; a session's key is not enough",
                status=401,
            )

    async def _serve(self, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = hello_of(await _next(receive))
            worker = await self._admitted(hello)
        except LoopwrightError as error:
            log.warning("a worker was refused: %s", error.message)
            await _send_frame(send, refusal_frame(error))
            await _close(send, REFUSED_CODE, error.message)
        except TimeoutError:
            await _close(send, REFUSED_CODE, f"no HELLO within {HELLO_SECONDS:g} s")
        except _GoneError:
            return
        else:
            await _serve_worker(worker, receive, send)

    async def _admitted(self, hello: Hello) -> RelayedWorker:
        worker = self._workers.named(hello.worker)
        try:
            await self._admit(hello, worker)
        except OSError as error:
            # Elsewhere an OSError means that the worker is gone. Here the worker must be told.
            raise RefusedError(
                f"the gateway could not take worker {hello.worker}: {type(error).__name__} {error}",
                remedy="see that the gateway's process can read its files, and the tokenizer of the worker's model",
                status=500,
            ) from error
        return worker


class _GoneError(Exception):
    """The worker has closed its connection. It never leaves this module."""


async def _serve_worker(worker: RelayedWorker, receive: Receive, send: Send) -> None:
    await _send_frame(send, RelayFrame(FrameType.WELCOME))
    link = Link(worker.name)
    worker.attach(link)
    log.info("worker %s is connected", worker.name)
    tasks = [asyncio.create_task(work) for work in (_read(link, receive), _pump(link, send), link.closed.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        worker.detach(link, "its connection was closed")
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        log.info("worker %s is disconnected: %s", worker.name, link.why)
    await _close(send, CLOSED_CODE, link.why)


async def _read(link: Link, receive: Receive) -> None:
    """Pass on what the worker sends, until it goes away or breaks the protocol."""
    try:
        while True:
            link.hear(await _next(receive))
    except RefusedError as error:
        log.warning("worker %s is cut off: %s", link.worker, error.message)
        link.lose(error.message)
    except _GoneError:
        link.lose("the worker went away")


async def _pump(link: Link, send: Send) -> None:
    try:
        while True:
            await _send_frame(send, await link.outgoing.get())
    except TimeoutError:
        link.lose(f"it has read nothing for {SILENCE_SECONDS:g} s")
    except OSError:
        link.lose("the worker went away")


async def _next(receive: Receive) -> RelayFrame:
    message = await receive()
    if message["type"] != "websocket.receive":
        raise _GoneError
    return frame_in(message.get("bytes"))


async def _send_frame(send: Send, frame: RelayFrame) -> None:
    """Raises TimeoutError, which is an OSError, if the worker has stopped reading. Pings do not notice that: they wait
    for the same buffer."""
    async with asyncio.timeout(SILENCE_SECONDS):
        await send({"type": "websocket.send", "bytes": frame.encoded()})


async def _close(send: Send, code: int, reason: str) -> None:
    said = reason.encode()[:LONGEST_REASON].decode(errors="ignore")
    async with asyncio.timeout(CLOSE_SECONDS):
        await send({"type": "websocket.close", "code": code, "reason": said})
