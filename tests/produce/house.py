"""A producer with everything it needs, and the ways in which it can die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from loopwright.agents import AgentSetup, EnginePolicies, LocalWorker, SingleTurn
from loopwright.buffer.replay import StoredBuffer
from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.core.redaction import Redactor
from loopwright.engines.timed import TimedClient
from loopwright.judgers import IntegerAnswer
from loopwright.ports import AgentLoop, Policy, ResumePlan, RolloutWorker, StalePolicy, StreamingEngine
from loopwright.produce import AgentLoopManager, Limits, ProduceSettings, RolloutRunner, TaskSetRuntime
from loopwright.testing import CharRenderer, ScriptedEngine, WorkerElsewhere
from loopwright.types import (
    Failed,
    GenerateRequest,
    Group,
    GroupStatus,
    Message,
    Rollout,
    RolloutKey,
    RolloutRequest,
    Sampling,
    Split,
    Task,
)

T = TypeVar("T")

KEY = RolloutKey("math", 3, 1)


class Counting:
    """The n-th task asks for n."""

    def __len__(self) -> int:
        return 1000

    def task(self, draw: int) -> Task:
        return Task.ask(f"t{draw}", f"say {draw}", truth=draw)


class RaisesOn:
    """An agent that cannot work on some tasks."""

    def __init__(self, *ids: str) -> None:
        self.ids = ids

    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        if task.id in self.ids:
            raise KeyError("tool")
        return await SingleTurn().run(task, policy)


class Says:
    """A filter that says the same of all groups."""

    name = "the test's filter"

    def __init__(self, decision: bool | Failed) -> None:
        self.decision = decision

    async def decide(self, group: Group) -> bool | Failed:
        return self.decision


def echo(request: GenerateRequest) -> str:
    """Answers with the number in the prompt: always right."""
    return "".join(c for c in CharRenderer().text(request.prompt_ids) if c.isdigit())


@dataclass(frozen=True)
class Set:
    """A task set and its agent."""

    runtime: TaskSetRuntime
    agent: AgentSetup

    @property
    def name(self) -> str:
        return self.runtime.name


def task_set(name: str = "math", **changes: Any) -> Set:
    of_agent = {key: changes.pop(key) for key in tuple(changes) if key in AgentSetup.__dataclass_fields__}
    runtime = replace(TaskSetRuntime(name, Counting(), IntegerAnswer(), Sampling()), **changes)
    return Set(runtime, replace(AgentSetup(SingleTurn()), **of_agent))


@dataclass
class House:
    """A producer with everything it needs."""

    engine: ScriptedEngine = field(default_factory=lambda: ScriptedEngine(echo, steps=1))
    pool: StreamingEngine | None = None
    """Between agents and engine, if there is anything."""
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    task_sets: Sequence[Set] = field(default_factory=lambda: [task_set()])
    groups: int = 3
    members: int = 2
    min_members: int | None = None
    budget: int = 4
    filter_budget: int = 4
    concurrency: int = 100
    max_attempts: int = 2
    judge_attempts: int = 1
    lockstep: bool = False
    max_context: int = 500
    agent_seconds: float = 600.0
    policy: StalePolicy = field(default_factory=lambda: StalePolicy(horizon=None))
    more: dict[str, Any] = field(default_factory=dict)
    """Further settings of production."""
    seen: list[Rollout] = field(default_factory=list)
    secrets: Sequence[str] = ()
    """What no rollout may hold."""
    wrap: Callable[[RolloutWorker], RolloutWorker] = WorkerElsewhere
    """What stands between production and the worker: only bytes cross over, as between processes."""

    def producer(self) -> AgentLoopManager:
        """One that begins with nothing."""
        return self._producer(StoredBuffer(self.storage, self.policy), {}, 0)

    async def resumed(self, step: int = 0, next_draws: dict[str, int] | None = None) -> AgentLoopManager:
        """One that goes on after `step` with what is in the storage."""
        names = [one.name for one in self.task_sets]
        buffer, plans = await StoredBuffer.resume(self.storage, self.policy, names, step=step, next_draws=next_draws)
        return self._producer(buffer, plans, step)

    def _producer(self, buffer: StoredBuffer, plans: Mapping[str, ResumePlan], step: int) -> AgentLoopManager:
        held = getattr(self.pool, "held_seconds", lambda: 0.0)
        engine = TimedClient(self.pool or self.engine, held)
        worker = LocalWorker(
            {(Split.TRAIN, one.name): one.agent for one in self.task_sets},
            EnginePolicies(engine, CharRenderer(), self.max_context, held),
        )
        runner = RolloutRunner(
            self.wrap(worker),
            seed=1,
            limits=Limits(self.agent_seconds, self.judge_attempts),
            concurrency=self.concurrency,
            max_attempts=self.max_attempts,
            lockstep=self.engine if self.lockstep else None,
            redact=Redactor(self.secrets),
        )
        chosen = ProduceSettings(self.groups, self.members, self.min_members, self.budget, self.filter_budget)
        return AgentLoopManager(
            [one.runtime for one in self.task_sets],
            runner,
            buffer,
            self.pool or self.engine,
            replace(chosen, **self.more),
            step=step,
            plans=plans,
            on_rollout=self.seen.append,
        )

    async def counts(self, name: str = "math") -> dict[GroupStatus, int]:
        return {status: count for status, count in (await self.storage.counts())[name].items() if count}


async def roll_out(
    loop: AgentLoop,
    engine: StreamingEngine,
    *,
    held: Callable[[], float] = lambda: 0.0,
    key: RolloutKey = KEY,
    task: Task,
    seconds: float = 30.0,
    max_context: int = 9999,
    sampling: Sampling | None = None,
    resume_from: Rollout | None = None,
    **agent: Any,
) -> Rollout:
    """One rollout by the worker of this process; `agent` is how its agent is set up."""
    client = TimedClient(engine, held)
    policies = EnginePolicies(client, CharRenderer(), max_context, held)
    worker = LocalWorker({(Split.TRAIN, key.task_set): AgentSetup(loop, **agent)}, policies)
    request = RolloutRequest(Split.TRAIN, key, task, sampling or Sampling(), seconds, resume_from)
    return await worker.run(request)


class KilledError(Exception):
    """Stands for kill -9."""


class Mortal(MemoryStorage):
    """Storage that dies before its n-th write. Each write is acknowledged some `turns` of the event loop after it is
    done; `wrote` is set before."""

    def __init__(self, turns: int = 0) -> None:
        super().__init__()
        self.writes_left: int | None = None
        self.wrote = asyncio.Event()
        self._turns = turns

    async def write(self, work: Coroutine[Any, Any, T]) -> T:
        if self.writes_left == 0:
            work.close()
            raise KilledError
        if self.writes_left is not None:
            self.writes_left -= 1
        done = await work
        self.wrote.set()
        for _ in range(self._turns):
            await asyncio.sleep(0)
        return done

    async def draw(self, *args: Any) -> Any:
        return await self.write(super().draw(*args))

    async def put(self, *args: Any) -> None:
        await self.write(super().put(*args))

    async def put_rewards(self, *args: Any) -> None:
        await self.write(super().put_rewards(*args))

    async def take_up(self, *args: Any) -> Any:
        return await self.write(super().take_up(*args))

    async def mark(self, rows: Sequence[tuple[str, int]], status: GroupStatus, why: str | None = None) -> None:
        for group in rows:
            move = self._rounds(*group)[-1].row.status, status
            assert move[0] is GroupStatus.PENDING or move == (GroupStatus.COMPLETED, GroupStatus.EXPIRED), move
        await self.write(super().mark(rows, status, why))

    async def consume(self, *args: Any) -> None:
        await self.write(super().consume(*args))
