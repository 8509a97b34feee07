"""Several agent servers: the least loaded one gets the next trial, and one that cannot be reached rests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from loopwright.agents.trials.client import AgentServer, ServerLoad
from loopwright.core.together import together
from loopwright.errors import AgentServerError

FIRST_REST_SECONDS = 1.0
LONGEST_REST_SECONDS = 30.0
FRESH_SECONDS = 1.0
"""How long a server's load counts as known. What this process submits meanwhile is added."""
REMEMBERED = 4096
"""Rollouts whose last server is known."""


@dataclass(slots=True, eq=False)
class PooledServer:
    """A server, and what is known of it. `mine` are the trials that it has of this process."""

    client: AgentServer
    mine: int = 0
    added: int = 0
    load: ServerLoad | None = None
    known_at: float = float("-inf")
    rests_until: float = float("-inf")
    rest_seconds: float = FIRST_REST_SECONDS

    @property
    def has_room(self) -> bool:
        return self.load is not None and self.load.room > self.added

    @property
    def share(self) -> tuple[float, int]:
        """How full it is."""
        if self.load is None:
            return float("inf"), self.mine
        return (self.load.running + self.load.queued + self.added) / self.load.slots, self.mine

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a trial that is on it."""
        self.mine += 1
        self.added += 1
        try:
            yield
        finally:
            self.mine -= 1
            self.added = max(0, self.added - 1)

    def answered(self) -> None:
        self.rest_seconds = FIRST_REST_SECONDS


class ServerPool:
    """Chooses among servers."""

    def __init__(self, clients: Sequence[AgentServer]) -> None:
        self.servers = [PooledServer(client) for client in clients]
        self._last: OrderedDict[str, PooledServer] = OrderedDict()

    async def choose(self, rollout: str) -> PooledServer | None:
        """The server for the next attempt at a rollout: the one that it was on, or else the least loaded. None if none
        has room. Raises AgentServerError if none can be reached."""
        now = asyncio.get_running_loop().time()
        awake = [server for server in self.servers if server.rests_until <= now]
        failures = [error for error in await together(self._ask(server, now) for server in awake) if error]
        awake = [server for server in awake if server.rests_until <= now]
        if not awake:
            words = failures[0].message if failures else "all of them rest"
            raise AgentServerError(
                f"no agent server can be reached: {words}", remedy="see whether they are running", status=0, sent=False
            )
        roomy = [server for server in awake if server.has_room]
        last = self._last.get(rollout)
        if last in roomy:
            return last
        return min(roomy, key=lambda server: server.share) if roomy else None

    def remember(self, rollout: str, server: PooledServer) -> None:
        """A retry of this rollout goes to the same server: what it has fetched is there."""
        self._last[rollout] = server
        self._last.move_to_end(rollout)
        if len(self._last) > REMEMBERED:
            self._last.popitem(last=False)

    def rest(self, server: PooledServer) -> None:
        """The server cannot be reached: leave it alone for a while, each time longer."""
        server.rests_until = asyncio.get_running_loop().time() + server.rest_seconds
        server.rest_seconds = min(2 * server.rest_seconds, LONGEST_REST_SECONDS)
        server.known_at = float("-inf")
        for rollout in [rollout for rollout, last in self._last.items() if last is server]:
            del self._last[rollout]

    async def _ask(self, server: PooledServer, now: float) -> AgentServerError | None:
        if now - server.known_at < FRESH_SECONDS:
            return None
        try:
            server.load = await server.client.load()
        except AgentServerError as error:
            self.rest(server)
            return error
        server.added, server.known_at = 0, now
        server.answered()
        return None
