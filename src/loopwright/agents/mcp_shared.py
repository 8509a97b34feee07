"""One tool server for all rollouts. It is started again when it dies.

Its tools keep no state, so a call that lost its server is made once more on the next server. It then runs alone,
because any of the running calls may have killed the server. A call that loses that server too becomes a tool error,
which the model reads (R2). Other calls do not notice. A server that dies again and again by itself, or with every call,
is given up (R4): from then on every rollout that needs it fails as infrastructure, with the last reason. A server that
never started is not started again, because a wrong command stays wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, Self

from loopwright.errors import ToolServerError
from loopwright.types import Tool

log = logging.getLogger("loopwright")

MAX_RESTARTS = 3
"""How often a server is started again if no call is the cause of its deaths."""
MAX_BLAMED = 20
"""How many calls in a row may be the cause of a death. A group of rollouts may make the same bad call, but a server
that never answers is broken."""
FIRST_PAUSE_SECONDS = 0.2
"""The pause before a server is started again. Each later pause is twice as long."""


class RunningServer(Protocol):
    """A running server, and the tools that it offers."""

    @property
    def tools(self) -> Sequence[Tool]: ...

    async def use(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The result of a tool. Raises ToolServerError if the server is lost."""
        ...


class SharedServer:
    """Use it as `async with`. Entering `start` starts a server, or raises ToolServerError; leaving ends it.

    A call may take `timeout_seconds`. Waiting for a server does not count.
    """

    def __init__(self, start: Callable[[], AbstractAsyncContextManager[RunningServer]], timeout_seconds: float) -> None:
        self._start = start
        self._timeout_seconds = timeout_seconds
        self._deaths = 0
        self._blamed = 0
        self._suspects = 0
        self._no_suspects = asyncio.Event()
        self._no_suspects.set()
        self._alone = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._running: asyncio.Future[RunningServer] = asyncio.get_running_loop().create_future()
        self._lost: asyncio.Future[ToolServerError] = asyncio.get_running_loop().create_future()
        # The server needs its own task: the task that entered its context must also leave it.
        self._keeper = asyncio.create_task(self._keep())
        try:
            await self.running()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._keeper.cancel()
        await asyncio.wait((self._keeper,))

    async def running(self) -> RunningServer:
        """The server, as soon as there is one. Raises if there will be none."""
        return await asyncio.shield(self._running)

    async def use(self, name: str, arguments: Mapping[str, Any]) -> str:
        server = await self._unsuspected()
        try:
            return await self._ask(server, name, arguments)
        except ToolServerError as error:
            self._lose(server, error)
        self._suspects += 1
        self._no_suspects.clear()
        try:
            async with self._alone:
                return await self._use_alone(name, arguments)
        finally:
            self._suspects -= 1
            if not self._suspects:
                self._no_suspects.set()

    async def _unsuspected(self) -> RunningServer:
        """The server, as soon as no running call may kill it."""
        while True:
            await self._no_suspects.wait()
            server = await self.running()
            if self._no_suspects.is_set():
                return server

    async def _use_alone(self, name: str, arguments: Mapping[str, Any]) -> str:
        server = await self.running()
        try:
            return await self._ask(server, name, arguments)
        except ToolServerError as error:
            self._blamed += 1
            if self._blamed <= MAX_BLAMED:
                self._deaths = 0
            self._lose(server, error)
            return f"error: the server of {name} died 2 times while it ran"

    async def _ask(self, server: RunningServer, name: str, arguments: Mapping[str, Any]) -> str:
        deadline = asyncio.timeout(self._timeout_seconds)
        try:
            async with deadline:
                said = await server.use(name, arguments)
        except TimeoutError:
            if deadline.expired():
                return f"error: {name} took longer than {self._timeout_seconds:g} s"
            raise
        self._deaths = self._blamed = 0
        return said

    def _lose(self, server: RunningServer, error: ToolServerError) -> None:
        """Record that the server is lost: callers now wait for the next one. Another call may have recorded it
        before."""
        running = self._running
        if running.done() and running.exception() is None and running.result() is server:
            self._running = asyncio.get_running_loop().create_future()
            if not self._lost.done():  # the keeper may be gone, because everything ends
                self._lost.set_result(error)

    async def _keep(self) -> None:
        """Keep a server running until this is cancelled, or until the server is given up."""
        try:
            raise await self._last_loss()
        except asyncio.CancelledError:
            self._running.cancel()
            raise
        except Exception as error:
            if self._running.done():
                self._running = asyncio.get_running_loop().create_future()
            self._running.set_exception(error)
            self._running.exception()  # mark it as retrieved: nobody may ask for a server any more

    async def _last_loss(self) -> ToolServerError:
        """Start the server again and again. Returns the reason why it is given up."""
        error = await self._live()
        while self._deaths < MAX_RESTARTS:
            log.warning("%s; it is started again", error.message)
            await asyncio.sleep(FIRST_PAUSE_SECONDS * 2**self._deaths)
            self._deaths += 1
            try:
                error = await self._live()
            except ToolServerError as not_started:
                error = not_started
        losses = self._deaths + 1 + 2 * self._blamed
        words = f"was lost {losses} times without an answer in between, and is given up"
        return ToolServerError(f"a shared server of tools {words}: {error.message}", remedy=error.remedy)

    async def _live(self) -> ToolServerError:
        """Start one server and wait until it is lost. Returns how it was lost."""
        async with self._start() as server:
            self._lost = asyncio.get_running_loop().create_future()
            self._running.set_result(server)
            return await self._lost
