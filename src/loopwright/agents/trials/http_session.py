"""One HTTP session for all clients of agent servers in a process. A session per request would open a connection for
each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from loopwright.config.extras import require

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0
READ_SECONDS = 90.0
"""Longer than a server holds a request back, or than it is silent in a stream of events."""
IDLE_CONNECTIONS = 64


@dataclass(slots=True)
class _Shared:
    http: httpx.AsyncClient
    users: int = 0


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()
"""By event loop: a session cannot be used by two of them. It is closed when its last user leaves."""


@asynccontextmanager
async def http_session() -> AsyncIterator[httpx.AsyncClient]:
    """The session of this process. It is open as long as somebody uses it."""
    require("http", "an agent server's client")
    import httpx

    loop = asyncio.get_running_loop()
    shared = _SHARED.get(loop)
    if shared is None:
        # Every trial in flight has a request out, so their number is not limited here.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS)
        timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
        shared = _SHARED[loop] = _Shared(httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False))
    shared.users += 1
    try:
        yield shared.http
    finally:
        shared.users -= 1
        if not shared.users:
            del _SHARED[loop]
            await shared.http.aclose()
