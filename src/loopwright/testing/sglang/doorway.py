"""Passes bytes on between callers and a server in this process, so that the server can die: when the doorway is shut,
all connections break at once, without an answer, and new ones are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

BLOCK = 1 << 16


class Doorway:
    """Passes on to `inner`, a port of this machine. `open_doorway` makes it."""

    def __init__(self, inner: int) -> None:
        self._inner = inner
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        self._server = await asyncio.start_server(self._pass_on, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def shut(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def end(self) -> None:
        self.shut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._inner)
            self._writers.add(inner_writer)
            try:
                ways = [asyncio.ensure_future(w) for w in (_copy(reader, inner_writer), _copy(inner_reader, writer))]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
            finally:
                self._leave(inner_writer)
        except OSError:
            pass
        finally:
            self._leave(writer)

    def _leave(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()


@asynccontextmanager
async def open_doorway(inner: int, host: str, port: int) -> AsyncIterator[tuple[Doorway, int]]:
    doorway = Doorway(inner)
    try:
        yield doorway, await doorway.listen(host, port)
    finally:
        await doorway.end()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(BLOCK):
            writer.write(data)
            await writer.drain()
