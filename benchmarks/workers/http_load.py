"""A closed loop of clients: each asks again as soon as it has its answer. Only the standard library."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.workers.framing import Messages, request_bytes

OK = b"HTTP/1.1 200"
ANSWER = b'"chat.completion"'
LONGEST_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Door:
    """Where one client knocks."""

    path: str
    headers: dict[str, str] = field(default_factory=dict)

    def request(self, body: bytes) -> bytes:
        return request_bytes("POST", self.path, {"content-type": "application/json", **self.headers}, body)


@dataclass(frozen=True, slots=True)
class Pass:
    """What a while of load came to: the time of each request, and of all, in seconds."""

    latencies: Sequence[float]
    seconds: float

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Client(Messages):
    """Asks until `until`, and tells when it has its last answer."""

    def __init__(self, door: Door, bodies: Iterator[bytes], latencies: list[float]) -> None:
        super().__init__()
        # The same head for every body: what comes before the length is made once.
        self._head = door.request(b"").partition(b"content-length:")[0] + b"content-length: %d\r\n\r\n"
        self._bodies = bodies
        self._latencies = latencies
        self._asked = 0.0
        self._until = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, until: float) -> None:
        self._until = until
        self._ask()

    def _ask(self) -> None:
        body = next(self._bodies)
        self._asked = time.perf_counter()
        self.send(self._head % len(body) + body)

    def message(self, message: bytes) -> None:
        now = time.perf_counter()
        self._latencies.append(now - self._asked)
        if not message.startswith(OK) or ANSWER not in message[:2000].replace(b": ", b":"):
            self._end(RuntimeError(f"a request was answered with {message[:600]!r}"))
        elif now < self._until:
            self._ask()
        else:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(RuntimeError(f"a connection was lost: {exc}"))

    def _end(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


async def load(port: int, doors: Sequence[Door], bodies: Iterator[bytes], seconds: float) -> Pass:
    """One client per door, all at once, for `seconds`; what is under way then is waited for and counts."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    clients: list[Client] = []
    for door in doors:
        _, client = await loop.create_connection(partial(Client, door, bodies, latencies), "127.0.0.1", port)
        clients.append(client)
    started = time.perf_counter()
    try:
        for client in clients:
            client.start(started + seconds)
        async with asyncio.timeout(seconds + LONGEST_SECONDS):
            await asyncio.gather(*(client.done for client in clients))
        return Pass(latencies, time.perf_counter() - started)
    finally:
        for client in clients:
            if client.transport is not None:
                client.transport.close()
