"""How the dice fall in a walk of production: which agents, engines and judges fail, and how long answers take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from loopwright.agents import SingleTurn
from loopwright.core.seeds import derive_seed
from loopwright.errors import JudgeError
from loopwright.judgers import IntegerAnswer, MemberJudger
from loopwright.ports import Policy
from loopwright.testing import CharRenderer, ScriptedEngine
from loopwright.types import Episode, GenerateRequest, Message, Scored, Task


def chance(*parts: object) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    return derive_seed(*(str(part) for part in parts)) % 1000 / 1000


@dataclass(frozen=True)
class World:
    """How the dice fall in one walk."""

    seed: int
    agent_fails: float
    engine_fails: bool
    judge_fails: float
    slowest: float

    def seconds(self, request: GenerateRequest) -> float:
        return 0.1 + self.slowest * chance(self.seed, "seconds", request.id) ** 4

    def answer(self, request: GenerateRequest) -> str:
        """Right for most members, wrong for some: half of the groups have no signal."""
        right = "".join(c for c in CharRenderer().text(request.prompt_ids) if c.isdigit())
        member = request.id.split("/")[2]
        return right if member == "00" or chance(self.seed, "right", request.id) < 0.5 else "no idea"

    def engine(self, version: int) -> ScriptedEngine:
        faults = range(self.seed % 7, 1000, 7) if self.engine_fails else ()
        return ScriptedEngine(self.answer, seconds=self.seconds, faults=faults, version=version)


class Moody:
    """An agent that raises for some tasks, and goes on from its tokens otherwise."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        if chance(self.world.seed, "agent", task.id) < self.world.agent_fails:
            raise KeyError("tool")
        return await SingleTurn().run(task, policy)


class Doubtful(MemberJudger):
    """A judger that takes half a second, and cannot judge some tasks."""

    name = "doubtful"

    def __init__(self, world: World) -> None:
        self.world = world

    async def judge(self, task: Task, episode: Episode) -> Scored:
        await asyncio.sleep(0.5)
        if chance(self.world.seed, "judge", task.id) < self.world.judge_fails:
            raise JudgeError("no idea", remedy="none: the test asked for it")
        return await IntegerAnswer().judge(task, episode)


worlds = st.builds(
    World,
    seed=st.integers(0, 10_000),
    agent_fails=st.sampled_from([0.0, 0.2]),
    engine_fails=st.booleans(),
    judge_fails=st.sampled_from([0.0, 0.2]),
    slowest=st.sampled_from([0.0, 5.0, 60.0]),
)
