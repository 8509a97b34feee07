"""The gateway of a run on an actor: the part that the actor holds, and how the driver follows it.

Its sessions are in memory. If it dies, it is started again, perhaps elsewhere: what was open there is lost, and those
rollouts are made again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from loopwright.build.cluster import gateway_role
from loopwright.build.gateway import RunSessions, gateway_address, run_model
from loopwright.config import GatewayConfig
from loopwright.core.redaction import Redactor
from loopwright.engines.restartable import WAIT_SECONDS
from loopwright.errors import LoopwrightError, WorkerLostError
from loopwright.gateway.remote_policy import RemoteSessionPolicies
from loopwright.gateway.server import open_gateway_for_runs
from loopwright.gateway.store import MemoryRecords
from loopwright.serve.keys import new_key
from loopwright.track.redacting import redacting

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster
    from loopwright.cluster.crew import Crew, WorkingHost

log = logging.getLogger("loopwright")

SILENCE_SECONDS = 60.0
"""A gateway of which nothing is heard for so long is lost."""
STEADY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class HostedGateway:
    """A gateway that listens on its node. Every start of it has another `name`."""

    url: str
    name: str

    async def where(self) -> tuple[str, str]:
        """The URL at which the run reaches it, and its name."""
        return self.url, self.name


@asynccontextmanager
async def hosted_gateway(settings: GatewayConfig, key: str) -> AsyncIterator[HostedGateway]:
    """Runs on the actor. The model comes with the run, which registers."""
    from loopwright.cluster.node import node_address

    address = gateway_address(settings, node_address())
    with redacting(Redactor((key,))):
        async with open_gateway_for_runs(
            run_model, MemoryRecords(), key=key, address=address, wait_seconds=WAIT_SECONDS
        ) as gateway:
            yield HostedGateway(gateway.own_url, secrets.token_hex(8))


@asynccontextmanager
async def sessions_on_actor(opening: RunSessions, cluster: Cluster) -> AsyncIterator[RemoteSessionPolicies]:
    """Start the gateway on its actor, register the run with it, and give policies that are sessions there."""
    settings, role, key = opening.loaded.config.gateway, gateway_role(opening.loaded.config), new_key()
    if role is None:
        raise RuntimeError("the gateway is not on an actor")
    part = partial(hosted_gateway, settings, key)
    async with (
        cluster.crew(role, part, "the gateway", max_silence=SILENCE_SECONDS) as crew,
        _registered(opening, crew, key) as (sessions, name),
    ):
        following = asyncio.create_task(_follow(crew, name, sessions))
        try:
            yield sessions
        finally:
            following.cancel()
            await asyncio.wait((following,))


@asynccontextmanager
async def _registered(opening: RunSessions, crew: Crew, key: str) -> AsyncIterator[tuple[RemoteSessionPolicies, str]]:
    """The sessions, and the name of the gateway that has them. If the gateway is lost while the run registers, the run
    registers with the next one."""
    async with AsyncExitStack() as stack:
        while True:
            host = await crew.someone()
            try:
                async with _unless_lost(host):
                    url, name = await host.call("where")
                    sessions = await stack.enter_async_context(opening.open(url, key))
                break
            except WorkerLostError as lost:
                log.warning("the run registers with the next gateway: %s", lost.message)
        yield sessions, name


@asynccontextmanager
async def _unless_lost(host: WorkingHost) -> AsyncIterator[None]:
    """The block is left with WorkerLostError if the actor is lost meanwhile."""
    dying, inside = asyncio.ensure_future(host.died()), True
    try:
        async with asyncio.timeout(None) as limit:
            dying.add_done_callback(lambda _: limit.reschedule(0.0) if inside else None)
            try:
                yield
            finally:
                inside = False
    except TimeoutError:
        if not limit.expired():
            raise
        raise WorkerLostError(dying.result(), remedy="nothing to do: it is started again") from None
    finally:
        dying.cancel()


async def _follow(crew: Crew, name: str, sessions: RemoteSessionPolicies) -> None:
    """Tell `sessions` where the gateway is whenever it was started again, and when it was given up."""
    while True:
        try:
            host = await crew.someone()
            url, present = await host.call("where")
        except WorkerLostError:
            continue
        except LoopwrightError as error:
            sessions.cannot_go_on(error)
            return
        if present != name:
            name = present
            sessions.started_again(url, sessions.starts + 1)
        try:
            async with asyncio.timeout(STEADY_SECONDS):
                await host.died()
        except TimeoutError:
            # It works: its earlier deaths do not count any more.
            with suppress(WorkerLostError):
                await crew.work("where")
