"""Production without a model: the manager, the buffer and the runner as they are, with an engine that only takes time.

How long a rollout takes is drawn from a log-normal distribution by its name, so every schedule meets the same rollouts.
Time is virtual: it passes as fast as the manager can count. What an event loop returns should be small: when it ends,
Python 3.11 spells it out for nobody to read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from loopwright.agents import AgentSetup, EnginePolicies, LocalWorker, SingleTurn
from loopwright.buffer.replay import StoredBuffer
from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.core.seeds import derive_seed
from loopwright.core.staleness import horizon
from loopwright.engines.timed import TimedClient
from loopwright.judgers import MemberJudger
from loopwright.ports import StalePolicy
from loopwright.produce import AgentLoopManager, Limits, ProduceSettings, RolloutRunner, TaskSetRuntime
from loopwright.testing import CharRenderer, ScriptedEngine
from loopwright.types import (
    Episode,
    GenerateRequest,
    Group,
    PauseMode,
    ProduceKind,
    Sampling,
    Scored,
    Split,
    Task,
)

TASK_SET = "tasks"
CONTEXT = 1024
LONGEST_SECONDS = 1e9
"""No rollout of a benchmark is too long."""


@dataclass(frozen=True, slots=True)
class Plant:
    """The sizes of a run. Answers have `tokens` tokens, so that a rollout may span so many versions at most."""

    groups: int = 16
    samples: int = 8
    slots: int = 64
    sigma: float = 1.2
    tokens: int = 8
    seed: int = 0

    def seconds(self, draw: int, member: int) -> float:
        """How long a rollout takes; the median is 1."""
        return random.Random(derive_seed(self.seed, draw, member)).lognormvariate(0.0, self.sigma)

    def member_seconds(self, draw: int) -> list[float]:
        return [self.seconds(draw, member) for member in range(self.samples)]


@dataclass(slots=True)
class Trained:
    """What came out: when the last step was over, and the groups that were trained, as the learner saw them."""

    seconds: float = 0.0
    groups: list[Group] = field(default_factory=list)


def trained_tokens(group: Group) -> int:
    """Tokens that were not too old."""
    return sum(rollout.episode.sampled_tokens for rollout in group.rollouts if rollout.episode)


class Line:
    """A manager over storage in memory. Make it in the event loop that it is to run in."""

    def __init__(self, plant: Plant, *, staleness: int, kind: ProduceKind, steps: int | None = None) -> None:
        span = horizon(staleness)
        self.engine = ScriptedEngine(
            lambda request: "a" * (plant.tokens - 1), seconds=lambda request: plant.seconds(*_place(request))
        )
        settings = ProduceSettings(
            plant.groups, plant.samples, kind=kind, horizon=span, in_flight=PauseMode.KEEP, last_step=steps
        )
        self.manager = AgentLoopManager(
            [TaskSetRuntime(TASK_SET, _Questions(), _Pleased(), Sampling(max_new_tokens=plant.tokens))],
            RolloutRunner(
                LocalWorker(
                    {(Split.TRAIN, TASK_SET): AgentSetup(SingleTurn())},
                    EnginePolicies(TimedClient(self.engine), CharRenderer(), CONTEXT),
                ),
                seed=plant.seed,
                limits=Limits(LONGEST_SECONDS),
                concurrency=plant.slots,
                max_attempts=1,
            ),
            StoredBuffer(MemoryStorage(), StalePolicy(horizon=span)),
            self.engine,
            settings,
        )

    async def train_in_turn(self, steps: int, learner_seconds: float) -> Trained:
        """As a colocated run does: all groups of a step, then the step."""
        trained = Trained()
        for step in range(1, steps + 1):
            await self.engine.resume()
            batch = await self.manager.produce_batch(step, step - 1)
            await self._learn(step, batch.groups, learner_seconds, trained)
            await self.engine.load(step)
        return trained

    async def train_beside(self, steps: int, learner_seconds: float) -> Trained:
        """As a disaggregated run does, with new weights after every step."""
        trained = Trained()
        producing = asyncio.create_task(self.manager.produce_loop())
        await self.manager.continue_(0)
        for step in range(1, steps + 1):
            while not (batch := await self.manager.take(step)).groups:
                await self._sync(step - 1)
            await self._learn(step, batch.groups, learner_seconds, trained)
            if step < steps:
                await self._sync(step)
        await self.manager.shutdown()
        await producing
        return trained

    async def _learn(self, step: int, groups: Sequence[Group], seconds: float, trained: Trained) -> None:
        await asyncio.sleep(seconds)
        await self.manager.consume(groups, step)
        trained.groups += groups
        trained.seconds = asyncio.get_running_loop().time()

    async def _sync(self, version: int) -> None:
        await self.manager.pause(PauseMode.KEEP)
        await self.engine.load(version)
        await self.manager.continue_(version)


class _Questions:
    """As many tasks as anyone draws."""

    def __len__(self) -> int:
        return 1

    def task(self, draw: int) -> Task:
        return Task.ask(str(draw), "?")


class _Pleased(MemberJudger):
    """Finds every answer good, at once."""

    name = "pleased"

    async def judge(self, task: Task, episode: Episode) -> Scored:
        return Scored(1.0)


def _place(request: GenerateRequest) -> tuple[int, int]:
    """Draw and member, by which a request is named: `tasks/000012/03/0/…`."""
    _, draw, member, *_ = request.id.split("/")
    return int(draw), int(member)
