"""A tool agent's time stands still while the trainer holds the engines: that wait is not its own (R2)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from house import roll_out

from loopwright.agents import PythonTool, ToolBudget, ToolLoop
from loopwright.engines.controller import RolloutController
from loopwright.engines.restartable import RestartableEngine
from loopwright.engines.worker import embedded
from loopwright.errors import EngineLostError
from loopwright.ports import OnPart
from loopwright.testing import CharRenderer, ScriptedEngine
from loopwright.testing.virtual_time import run_virtually
from loopwright.types import Episode, GenerateRequest, Generation, PauseMode, Sampling, StopReason, Task

TOOLS = Path(__file__).parent.parent / "agents"
TASK = Task.ask("t", "What is it?", truth="it")
CALL = '<tool_call>{"name": "look_up", "arguments": {"words": ["it"]}}</tool_call>'
ANSWER_SECONDS = 4.0
PAUSE_SECONDS = 1000.0
AWAY_SECONDS = 40.0


def answer(request: GenerateRequest) -> str:
    """The model calls the tool, and answers when it has its result."""
    return "it" if '"found"' in CharRenderer().text(request.prompt_ids) else CALL


async def rolled_out(budget: dict[str, Any], mode: PauseMode | None, call: int = 0) -> Episode:
    """A rollout of two model calls; the trainer pauses in the middle of one of them, if at all."""
    loop = ToolLoop([PythonTool("user_tools.py:look_up", TOOLS, 5.0)], budget=ToolBudget(8, **budget))
    engine = ScriptedEngine(answer, seconds=lambda request: ANSWER_SECONDS)
    async with RolloutController.open([embedded(engine)]) as controller:
        held, sampling = controller.held_seconds, Sampling(max_new_tokens=500)
        running = asyncio.create_task(roll_out(loop, controller, held=held, task=TASK, seconds=60.0, sampling=sampling))
        if mode is not None:
            await asyncio.sleep(ANSWER_SECONDS * (call + 0.5))
            await controller.pause(mode)
            await asyncio.sleep(PAUSE_SECONDS)
            await controller.resume()
        made = await running
    assert made.episode is not None, made.reward
    return made.episode


@pytest.mark.parametrize("mode", [PauseMode.ABORT, PauseMode.KEEP, PauseMode.DRAIN])
@pytest.mark.parametrize("budget", [{"seconds": 10.0}, {"turn_seconds": 6.0}])
@pytest.mark.parametrize("call", [0, 1])
def test_a_pause_of_the_trainers_is_not_charged(budget: dict[str, Any], mode: PauseMode, call: int) -> None:
    episode = run_virtually(rolled_out(budget, mode, call))
    assert (episode.answer, episode.stop) == ("it", StopReason.DONE)


@pytest.mark.parametrize("mode", [None, PauseMode.ABORT])
@pytest.mark.parametrize("seconds", [4.5, 7.0])
def test_its_own_time_is_charged(seconds: float, mode: PauseMode | None) -> None:
    episode = run_virtually(rolled_out({"seconds": seconds}, mode))
    assert episode.stop is StopReason.BUDGET
    assert episode.answer != "it"


class Restarting(ScriptedEngine):
    """Answers the first call, and is away for a while before the second."""

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        now = asyncio.get_running_loop().time()
        if self.requests and now < ANSWER_SECONDS + AWAY_SECONDS:
            raise EngineLostError("it is started again", remedy="none: the test wants it so")
        return await super().generate(request, on_part)


def test_an_engine_elsewhere_that_is_started_again_is_not_charged() -> None:
    """The agent would be graded for an outage."""

    async def rolled_out() -> Episode:
        loop = ToolLoop([PythonTool("user_tools.py:look_up", TOOLS, 5.0)], budget=ToolBudget(8, seconds=10.0))
        engine = RestartableEngine(Restarting(answer, seconds=lambda request: ANSWER_SECONDS))
        held, sampling = engine.held_seconds, Sampling(max_new_tokens=500)
        made = await roll_out(loop, engine, held=held, task=TASK, seconds=20.0, sampling=sampling)
        assert made.episode is not None, made.reward
        return made.episode

    episode = run_virtually(rolled_out())
    assert (episode.answer, episode.stop) == ("it", StopReason.DONE)
