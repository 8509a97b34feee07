"""A cluster that is open: it starts the actors of a run, keeps them running, and writes down what they say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from loopwright.cluster.crew import Crew, OnDeath
from loopwright.cluster.folder import noted
from loopwright.cluster.groups import ReservedRoom, live_nodes, live_plan, reserved
from loopwright.cluster.host import Opening
from loopwright.cluster.logs import ActorLogs
from loopwright.cluster.nodes import per_actor
from loopwright.cluster.plan_text import resources_text, totals
from loopwright.cluster.remote_host import RemoteHost, launched, pickled
from loopwright.config.placement import ROOM_SECONDS, START_SECONDS
from loopwright.config.roles import Role
from loopwright.core.redaction import Redactor
from loopwright.errors import ClusterRoomError, WorkerLostError

log = logging.getLogger("loopwright")

PAUSE_SECONDS = 1.0
"""Between two attempts to start an actor whose node was lost."""


class Cluster:
    """A running cluster, which this process has joined. `address` is where the actors reach this process. The output of
    actors goes to `logs`. `folder` is Ray's folder, if the cluster was started by this process. `on_death` is told of
    every actor that is lost. The part of an actor may take `start_seconds` to open. An actor whose node was lost waits
    for another one for `room_seconds`."""

    def __init__(
        self,
        address: str,
        logs: ActorLogs,
        folder: Path | None = None,
        on_death: OnDeath = lambda name, words: None,
        start_seconds: float = START_SECONDS,
        room_seconds: float = ROOM_SECONDS,
    ) -> None:
        self.address = address
        self._logs = logs
        self._folder = folder
        self._on_death = on_death
        self._start_seconds = start_seconds
        self._room_seconds = room_seconds
        self._have_run: set[str] = set()
        self._groups: Mapping[str, ReservedRoom] = {}
        self._crews: list[Crew] = []

    def standing(self) -> list[dict[str, Any]]:
        """Each crew that is open, in the order of opening."""
        return [crew.standing() for crew in self._crews]

    @asynccontextmanager
    async def reserved(self, roles: Sequence[Role]) -> AsyncIterator[None]:
        """Reserve room for these roles while the block runs. Raises ConfigError, with the arithmetic, if the cluster
        has none."""
        plan, nodes = await live_plan(roles)
        lines = [*plan.lines(), totals(roles, nodes)]
        log.info("who goes where:\n%s", "\n".join(lines))
        self._logs.write("plan", "".join(f"{line}\n" for line in lines).encode())
        async with reserved(plan) as self._groups:
            try:
                yield
            finally:
                self._groups = {}

    @contextmanager
    def kept_in(self, logs: Path, note: Path, redact: Redactor) -> Iterator[None]:
        """Write the output of actors to files in `logs` from now on, and, while the block runs, the place of Ray's
        folder to the file `note`."""
        self._logs.write_to(logs, redact)
        with nullcontext() if self._folder is None else noted(self._folder, note):
            yield

    @asynccontextmanager
    async def crew(
        self, role: Role, opening: Opening, what: str, *, max_silence: float | None = None
    ) -> AsyncIterator[Crew]:
        """The actors of a role, each with a part of its own that `opening` opens. `what` names the part in errors. One
        of which nothing is heard for `max_silence` seconds is lost."""
        launches = [
            (role.actor_name(number), partial(self.launch, role, number, opening, what)) for number in range(role.count)
        ]
        async with Crew.open(role.name, launches, on_death=self._on_death, max_silence=max_silence) as crew:
            self._crews.append(crew)
            try:
                yield crew
            finally:
                self._crews.remove(crew)

    def launch(self, role: Role, number: int, opening: Opening, what: str) -> AbstractAsyncContextManager[RemoteHost]:
        """One actor of a role, while the context is open. One whose node was lost waits there for another one."""
        return self._launched(role, number, pickled(opening, what))

    @asynccontextmanager
    async def _launched(self, role: Role, number: int, opening: bytes) -> AsyncIterator[RemoteHost]:
        name = role.actor_name(number)
        write = partial(self._logs.write, name)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._room_seconds
        async with AsyncExitStack() as stack:
            while True:
                start = launched(
                    name,
                    opening,
                    self._options(role, number),
                    memory=role.memory,
                    on_output=write,
                    start_seconds=self._start_seconds,
                    room_seconds=max(0.0, deadline - loop.time()),
                )
                try:
                    host = await stack.enter_async_context(start)
                    break
                except ClusterRoomError as error:
                    raise await self._without_room(role, error) from None
                except WorkerLostError as error:
                    # Ray notices late that a node is lost. What is started there meanwhile is lost with it, and that is
                    # nobody's death: it costs nothing of a budget of restarts.
                    if name not in self._have_run or not error.facts.get("node_lost"):
                        raise
                    log.warning("%s waits for another node", name)
                    await asyncio.sleep(PAUSE_SECONDS)
            self._have_run.add(name)
            yield host

    async def _without_room(self, role: Role, error: ClusterRoomError) -> ClusterRoomError:
        """The error with the arithmetic: what the actor takes, and what each node has."""
        nodes = await asyncio.to_thread(live_nodes)
        free = "; ".join(
            f"{node.name} has {resources_text(node.free)} of {resources_text(node.total)}" for node in nodes
        )
        return ClusterRoomError(
            f"{error.message} within {self._room_seconds:g} s, which cluster.room_seconds allows: it takes "
            f"{resources_text(per_actor(role))}. Free are: {free}",
            remedy=error.remedy,
        )

    def _options(self, role: Role, number: int) -> Mapping[str, Any]:
        # Ray would take 1 CPU to place an actor and 0 to run it if none were given.
        resources = {"num_cpus": role.cpus, "num_gpus": role.gpus, "memory": role.memory or 0}
        group = self._groups.get(role.key)
        return resources if group is None else {**resources, **group.options(number)}
