"""Requests to a server and their answers, however they travel: over connections that the client opened, or over one
that the server has dialled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Waiting(Protocol):
    """How many seconds of silence are allowed, and what is called then. If `after` returns, the wait continues."""

    @property
    def seconds(self) -> float: ...

    @property
    def after(self) -> Callable[[], Awaitable[None]]: ...


class ServerAnswer(Protocol):
    """An answer whose head has arrived."""

    @property
    def status(self) -> int: ...

    async def read(self) -> bytes:
        """The rest of the body."""
        ...

    async def more(self) -> bytes:
        """The part of the body that has arrived since the last call. Empty at the end of the body."""
        ...


class Exchanges(Protocol):
    """The way to one server. What breaks off raises EngineLostError, or an error that the caller of this way knows."""

    @property
    def url(self) -> str: ...

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Send these with every later request."""
        ...

    def ask(self, method: str, path: str, body: bytes, patience: Waiting) -> AbstractAsyncContextManager[ServerAnswer]:
        """Send a request, and give its answer when the answer's head has arrived. Leaving early ends the request."""
        ...

    async def whole(self, method: str, path: str, body: bytes, patience: Waiting) -> tuple[int, bytes]:
        """The status and the whole body of an answer."""
        ...
