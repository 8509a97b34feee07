"""Small writes of our servers leave at once."""

from __future__ import annotations

import asyncio
import socket

from loopwright.serve.listen import _bound


async def test_what_a_server_accepts_waits_for_no_acknowledgement() -> None:
    """Without TCP_NODELAY, an answer of two small writes takes 40 ms more."""
    accepted: asyncio.Queue[int] = asyncio.Queue()

    async def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.put_nowait(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()
        await writer.wait_closed()

    with _bound("127.0.0.1", 0) as listener:
        async with await asyncio.start_server(met, sock=listener), asyncio.timeout(10):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await accepted.get()
            writer.close()
            await writer.wait_closed()
