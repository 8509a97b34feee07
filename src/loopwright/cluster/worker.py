"""Agents on actors, behind the port of rollout workers.

The invariants. An attempt is sent to one actor, once. If that actor is lost, the caller gets WorkerLostError and makes
the next attempt: nobody knows how far this one came, and no answer of it is taken any more. The driver alone deletes
sessions at a gateway, because it knows when a rollout is stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loopwright.core.together import together
from loopwright.errors import LoopwrightError, RemoteError
from loopwright.gateway.client import GatewayAddress
from loopwright.gateway.registration import Registration, RunModel
from loopwright.gateway.remote_policy import NONE_LEFT, RemoteSessionPolicies, SessionsLeft
from loopwright.ports import RolloutWorker
from loopwright.types import Episode, Failed, FailureCause, Reward, Rollout, RolloutKey, RolloutRequest, Split, Timing

if TYPE_CHECKING:
    from loopwright.cluster.crew import Crew

log = logging.getLogger("loopwright")

OF_THE_PLACE = frozenset({FailureCause.INFRA, FailureCause.SETUP})
"""Failures that may be due to the process or the machine of the agent."""
FAREWELL_SECONDS = 5.0
RETRY_SECONDS = 0.5
"""The pause before actors are told again what one of them could not do."""


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """The gateway at which agents open sessions, as the driver has registered with it. `starts` counts how often it
    was started again. `lost` says why it cannot be used any more."""

    address: GatewayAddress
    registration: Registration
    starts: int = 0
    lost: LoopwrightError | None = None


@dataclass(frozen=True, slots=True)
class Reach:
    """What an actor needs to reach the model: the controller's door with its key, and the gateway if there is one. It
    travels with every request, so an actor that was started again, and one whose gateway has moved, know it too."""

    model: RunModel
    gateway: GatewayAccess | None = None


@dataclass(frozen=True, slots=True)
class HostedRollout:
    """What an actor made of a request, and the sessions that the driver is to delete. The task stays there: its agent
    may have put values into it that the driver cannot read."""

    episode: Episode | None
    reward: Reward
    timing: Timing
    left: SessionsLeft = NONE_LEFT

    @staticmethod
    def of(made: Rollout, left: SessionsLeft = NONE_LEFT) -> HostedRollout:
        return HostedRollout(made.episode, made.reward, made.timing, left)

    def rollout(self, request: RolloutRequest, worker: str | None = None) -> Rollout:
        """The rollout, made on the actor named `worker`."""
        return Rollout(request.key, request.task, self.episode, self.reward, self.timing, worker)


@dataclass(frozen=True, slots=True)
class LoopCrew:
    """The actors that run the agent of a task set. With `served`, the agent talks to a gateway."""

    crew: Crew
    served: bool


class PlacedWorker:
    """A `RolloutWorker` that sends each request to the crew of its task set, or to `here` if that has none. `open`
    makes it."""

    def __init__(
        self,
        crews: Mapping[tuple[Split, str], LoopCrew],
        here: RolloutWorker,
        model: RunModel,
        sessions: RemoteSessionPolicies | None,
    ) -> None:
        self._crews = crews
        self._here = here
        self._model = model
        self._sessions = sessions
        self._running: dict[RolloutKey, Crew] = {}

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        crews: Mapping[tuple[Split, str], LoopCrew],
        here: RolloutWorker,
        model: RunModel,
        sessions: RemoteSessionPolicies | None = None,
    ) -> AsyncIterator[PlacedWorker]:
        """Have all actors reach the model. Raises what keeps them from it. `sessions` are those of agents behind a
        gateway: the driver has registered with it."""
        worker = cls(crews, here, model, sessions)
        await worker._tell()
        telling = asyncio.create_task(worker._keep_telling())
        try:
            yield worker
        finally:
            telling.cancel()
            await asyncio.wait((telling,))
            # Otherwise they would wait for a gateway that ends before them.
            with suppress(LoopwrightError, TimeoutError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await worker._ask_all("disconnect")

    async def run(self, request: RolloutRequest) -> Rollout:
        placed = self._crews.get((request.split, request.task_set))
        if placed is None:
            return await self._here.run(request)
        sessions = self._sessions if placed.served else None
        if sessions is not None and (kept := sessions.completed(request)) is not None:
            return kept
        # While an actor is started again, the gateway may move: the request is to say where it is afterwards.
        await placed.crew.someone()
        if sessions is not None and sessions.lost is not None:
            raise sessions.lost
        self._running[request.key], started = placed.crew, time.time()
        try:
            made: HostedRollout = await placed.crew.work(
                "run", request, self._reach(), session=str(request.key), succeeded=_succeeded
            )
        except BaseException as error:
            if sessions is not None:
                sessions.forget_attempt(request.split, request.key)
            if isinstance(error, RemoteError):
                return _not_brought(request, error, started)
            raise
        finally:
            del self._running[request.key]
        if sessions is not None:
            sessions.take_over(request, made.left)
        return made.rollout(request, placed.crew.home(str(request.key)))

    def first_attempt(self, split: Split, key: RolloutKey) -> int:
        placed = self._crews.get((split, key.task_set))
        if placed is None:
            return self._here.first_attempt(split, key)
        return self._sessions.first_attempt(split, key) if placed.served and self._sessions else key.attempt

    def stored(self, split: Split, key: RolloutKey) -> None:
        placed = self._crews.get((split, key.task_set))
        if placed is None:
            self._here.stored(split, key)
        elif placed.served and self._sessions is not None:
            self._sessions.stored(split, key)

    def silent_seconds(self, key: RolloutKey) -> float:
        crew = self._running.get(key)
        return self._here.silent_seconds(key) if crew is None else crew.silent_seconds(str(key))

    def _reach(self) -> Reach:
        sessions = self._sessions
        if sessions is None:
            return Reach(self._model)
        client = sessions.client
        return Reach(self._model, GatewayAccess(client.address, client.registration, sessions.starts, sessions.lost))

    async def _tell(self) -> None:
        await self._ask_all("connect", self._reach())

    async def _ask_all(self, method: str, *args: object) -> None:
        crews = {id(placed.crew): placed.crew for placed in self._crews.values()}
        await together(crew.everyone(method, *args) for crew in crews.values())

    async def _keep_telling(self) -> None:
        """Tell the actors when the gateway was started again, and when it cannot be used any more: the agents that talk
        to the lost one cannot go on."""
        if (sessions := self._sessions) is None:
            return
        told: object = (0, None)
        while True:
            news, state = sessions.changed.news, (sessions.starts, sessions.lost)
            if state == told:
                await news.wait()
                continue
            try:
                # An actor that is lost meanwhile is started again, and hears of it with its next request.
                await self._tell()
                told = state
            except LoopwrightError as error:
                log.warning("an actor cannot be told where the gateway is now: %s", error.message)
                await asyncio.sleep(RETRY_SECONDS)


def _succeeded(made: HostedRollout) -> bool:
    """Whether the actor did its work. An agent that raised, or a task that is too long, is no fault of the actor."""
    return not (isinstance(made.reward, Failed) and made.reward.cause in OF_THE_PLACE)


def _not_brought(request: RolloutRequest, error: RemoteError, started: float) -> Rollout:
    """The rollout of an agent that returned or raised what cannot leave its actor, or would have ended its process."""
    kind = str(error.facts.get("error", type(error).__name__))
    failed = Failed(FailureCause.AGENT, kind, f"task {request.task.id!r}: {error.message}")
    return Rollout(request.key, request.task, None, failed, Timing(started, time.time() - started))
