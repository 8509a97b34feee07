"""The limit: a proxy that only passes bytes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.workers.http_load import Door
from benchmarks.workers.port import Port
from benchmarks.workers.proxy_round import DIRECT, Proxy, Spec, child, keep_open, serve_rounds


@asynccontextmanager
async def bare_proxy(spec: Spec, upstream: int) -> AsyncIterator[Proxy]:
    command = [sys.executable, "-m", "benchmarks.workers.bare_proxy"]
    async with child(command, {"upstream": upstream}) as proxy:
        yield Proxy(proxy.port, proxy.pid, _doors, keep_open)


async def _doors(count: int) -> Sequence[Door]:
    return [DIRECT] * count


if __name__ == "__main__":
    asyncio.run(serve_rounds(Port(), bare_proxy))
