"""The ranks of a learner on actors of a cluster, as the driver sees them. All of them are in one reserved room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopwright.build.cluster import rank_role
from loopwright.build.hosted_rank import SentOffer, hosted_rank
from loopwright.config import RunConfig
from loopwright.errors import LearnerLostError, LoopwrightError
from loopwright.learn.ranks.messages import WeightOffer
from loopwright.learn.ranks.remote import RemoteRank

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster
    from loopwright.cluster.remote_host import RemoteHost

WHAT = "a rank of the learner"
"""What an actor of a rank holds, for errors."""


@dataclass(frozen=True, slots=True)
class RankActors:
    """The ranks, and where they meet."""

    ranks: list[RemoteRank]
    address: str


class ActorLine:
    """A rank on an actor. Weights from another node are put into a file in `folder`."""

    def __init__(self, host: RemoteHost, folder: Path) -> None:
        self._host = host
        self._folder = folder

    async def send(self, value: object) -> None:
        try:
            await self._host.call("tell", value)
        except LoopwrightError as error:
            raise ConnectionError(error.message) from error

    async def receive(self) -> Any:
        try:
            said = await self._host.call("hear")
        except LoopwrightError as error:
            raise EOFError from error
        return await asyncio.to_thread(self._kept, said) if isinstance(said, SentOffer) else said

    async def ended(self) -> tuple[str, str]:
        return await self._host.died(), ""

    def last_words(self) -> str:
        """They are in the log of the actor."""
        return ""

    def _kept(self, sent: SentOffer) -> WeightOffer:
        bucket = self._folder / "bucket.safetensors"
        bucket.write_bytes(sent.data)
        return replace(sent.offer, bucket=bucket)


@asynccontextmanager
async def rank_actors(config: RunConfig, cluster: Cluster, folder: Path) -> AsyncIterator[RankActors]:
    """Start an actor for each rank. They meet at an address of the node of rank 0."""
    from loopwright.cluster.node import this_node

    role, opening = rank_role(config), partial(hosted_rank, this_node())
    async with AsyncExitStack() as stack:
        ranks: list[RemoteRank] = []
        hosts: list[RemoteHost] = []
        for number in range(role.count):
            try:
                host = await stack.enter_async_context(cluster.launch(role, number, opening, WHAT))
            except LoopwrightError as error:
                raise LearnerLostError.of_rank(number, error.message, "") from error
            hosts.append(host)
            ranks.append(RemoteRank(number, ActorLine(host, folder)))
            stack.push_async_callback(ranks[-1].close)
        try:
            address = str(await hosts[0].call("meeting_place"))
        except LoopwrightError as error:
            raise LearnerLostError.of_rank(0, error.message, "") from error
        yield RankActors(ranks, address)
