"""The least that a proxy in Python can do: bytes in, the same bytes on, and back. It reads no JSON and records nothing.

Its first line of input has the upstream's port. Each client has one connection upstream.
"""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.workers.framing import Messages


class Upstream(Messages):
    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def message(self, message: bytes) -> None:
        self._client.send(message)


class Client(Messages):
    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self._upstream: Upstream | None = None
        self._waiting: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, self._upstream = await loop.create_connection(lambda: Upstream(self), "127.0.0.1", self._port)
        for message in self._waiting:
            self._upstream.send(message)

    def message(self, message: bytes) -> None:
        if self._upstream is None:
            self._waiting.append(message)
        else:
            self._upstream.send(message)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._upstream is not None and self._upstream.transport is not None:
            self._upstream.transport.close()


async def main() -> None:
    port = json.loads(sys.stdin.readline())["upstream"]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Client(port), "127.0.0.1", backlog=1024)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
