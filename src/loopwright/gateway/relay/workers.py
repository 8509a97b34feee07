"""The workers of a gateway by their names, whether they are connected or not.

The invariant: a worker has one connection at most, the latest. A new connection replaces the one before, and the end of
the one before changes nothing any more. A request is bound to the connection on which it was asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from loopwright.core.wakeup import WakeUp
from loopwright.errors import EngineLostError
from loopwright.gateway.relay.link import Link
from loopwright.ports import ServerAnswer, Waiting


class RelayedWorker:
    """The `Exchanges` with one worker, over the connection that it has at the moment."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._headers: dict[str, str] = {"content-type": "application/json"}
        self._link: Link | None = None
        self._changed = WakeUp()

    @property
    def url(self) -> str:
        return f"the relay ({self.name})"

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    async def connected(self) -> None:
        """Wait until it is connected."""
        await self._changed.until(lambda: self.is_connected)

    def add_headers(self, headers: Mapping[str, str]) -> None:
        self._headers |= headers

    def attach(self, link: Link) -> Link | None:
        """Use this connection from now on. Returns the one before, whose answers are lost."""
        earlier, self._link = self._link, link
        self._changed.notify()
        if earlier is not None:
            earlier.lose("another connection has replaced it")
        return earlier

    def detach(self, link: Link, why: str) -> None:
        """This connection is gone."""
        link.lose(why)
        if self._link is link:
            self._link = None

    @asynccontextmanager
    async def ask(self, method: str, path: str, body: bytes, patience: Waiting) -> AsyncIterator[ServerAnswer]:
        if self._link is None:
            raise EngineLostError(
                f"worker {self.name} is not connected", remedy="see whether it is running, and what its log says"
            )
        async with self._link.ask(method, path, self._headers, body, patience) as answer:
            yield answer

    async def whole(self, method: str, path: str, body: bytes, patience: Waiting) -> tuple[int, bytes]:
        async with self.ask(method, path, body, patience) as answer:
            return answer.status, await answer.read()


class RelayedWorkers:
    """All workers that were named so far."""

    def __init__(self) -> None:
        self._workers: dict[str, RelayedWorker] = {}

    def named(self, name: str) -> RelayedWorker:
        return self._workers.setdefault(name, RelayedWorker(name))
