"""A producer with everything it needs, and the ways in which it can die."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from loopwright.agents import EnginePolicy, SingleTurn
from loopwright.buffer.replay import StoredBuffer
from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.judgers import IntegerAnswer
from loopwright.ports import Engine, Policy, ResumePlan, StalePolicy
from loopwright.produce import AgentLoopManager, Limits, ProduceSettings, RolloutRunner, TaskSetRuntime
from loopwright.testing import CharRenderer, ScriptedEngine
from loopwright.types import Failed, GenerateRequest, Group, GroupStatus, Message, Rollout, Sampling, Task

T = TypeVar("T")


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


def task_set(name: str = "math", **changes: Any) -> TaskSetRuntime:
    return replace(TaskSetRuntime(name, Counting(), SingleTurn(), IntegerAnswer(), Sampling()), **changes)


@dataclass
class House:
    """A producer with everything it needs."""

    engine: ScriptedEngine = field(default_factory=lambda: ScriptedEngine(echo, steps=1))
    pool: Engine | None = None
    """Between agents and engine, if there is anything."""
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    task_sets: Sequence[TaskSetRuntime] = field(default_factory=lambda: [task_set()])
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

    def producer(self) -> AgentLoopManager:
        """One that begins with nothing."""
        return self._producer(StoredBuffer(self.storage, self.policy), {}, 0)

    async def resumed(self, step: int = 0, next_draws: dict[str, int] | None = None) -> AgentLoopManager:
        """One that goes on after `step` with what is in the storage."""
        names = [one.name for one in self.task_sets]
        buffer, plans = await StoredBuffer.resume(self.storage, self.policy, names, step=step, next_draws=next_draws)
        return self._producer(buffer, plans, step)

    def _producer(self, buffer: StoredBuffer, plans: Mapping[str, ResumePlan], step: int) -> AgentLoopManager:
        runner = RolloutRunner(
            lambda prefix, sampling, **more: EnginePolicy(
                self.pool or self.engine, CharRenderer(), sampling, prefix, self.max_context, **more
            ),
            seed=1,
            limits=Limits(self.agent_seconds, self.judge_attempts),
            concurrency=self.concurrency,
            max_attempts=self.max_attempts,
            lockstep=self.engine if self.lockstep else None,
            held=getattr(self.pool, "held_seconds", lambda: 0.0),
        )
        chosen = ProduceSettings(self.groups, self.members, self.min_members, self.budget, self.filter_budget)
        return AgentLoopManager(
            self.task_sets,
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

    async def mark(self, groups: Sequence[tuple[str, int]], status: GroupStatus) -> None:
        for group in groups:
            move = self._rounds(*group)[-1].row.status, status
            assert move[0] is GroupStatus.PENDING or move == (GroupStatus.COMPLETED, GroupStatus.EXPIRED), move
        await self.write(super().mark(groups, status))

    async def consume(self, *args: Any) -> None:
        await self.write(super().consume(*args))
