"""Loopwright's way to run programs: the remote loop and the command runner, before a gateway with a scripted engine, as
the worker of a run has them. A rollout that failed, or whose turns are not one chain, ends the benchmark."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.workers.port import Port
from benchmarks.workers.program_round import program, run_programs
from loopwright.agents import AgentSetup, LocalWorker
from loopwright.agents.remote import RemoteLoop, WeightedRunner
from loopwright.agents.runners.command import CommandRunner
from loopwright.agents.runners.host import ProgramHost
from loopwright.config import CommandRunnerConfig, ExitCodeReward
from loopwright.core.chains import turns_of
from loopwright.errors import BenchError
from loopwright.gateway.offer import Served
from loopwright.gateway.server import open_gateway
from loopwright.gateway.store import MemoryStore
from loopwright.render.chat_template import ChatTemplateRenderer
from loopwright.serve.keys import new_key
from loopwright.testing import ScriptedEngine
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import Rollout, RolloutKey, RolloutRequest, Sampling, Scored, Split, Task

Spec = Mapping[str, Any]

TASK_SET = "programs"
MAX_CONTEXT = 4096
SECONDS = 600.0
"""Longer than any program takes on a busy machine."""


async def main(port: Port) -> None:
    async with opened(port.spec) as worker:
        port.ready("loopwright")
        for watch in port.rounds():
            rollouts, facts = await run_round(port.spec, worker)
            taken = watch.stop()
            for rollout in rollouts:
                require_one_chain(rollout, port.spec["turns"])
            port.answer(taken, **facts)


async def run_round(spec: Spec, worker: LocalWorker) -> tuple[list[Rollout], dict[str, Any]]:
    """All programs of a round: their rollouts, and what they took."""
    task, sampling, rollouts = Task.ask("t", spec["question"]), Sampling(max_new_tokens=1024), list[Rollout]()

    async def run(number: int) -> None:
        request = RolloutRequest(Split.TRAIN, RolloutKey(TASK_SET, number, 0), task, sampling, SECONDS)
        rollouts.append(await worker.run(request))

    facts = await run_programs(spec["programs"], spec["at_once"], run)
    return rollouts, facts


@asynccontextmanager
async def opened(spec: Spec) -> AsyncIterator[LocalWorker]:
    """A worker whose agent is the program, before a gateway of its own."""
    base, tokenizer = Path(spec["folder"]), tiny_tokenizer()
    host = ProgramHost.here(base, base / "run", dict(os.environ), {})
    config = CommandRunnerConfig(command=tuple(program(spec["turns"], "{task.prompt}")))
    loop = RemoteLoop([WeightedRunner(CommandRunner(config, ExitCodeReward(), host))])
    answer = (*tokenizer.encode(spec["answer"], add_special_tokens=False), tokenizer.eos_token_id)
    served = Served(ScriptedEngine([answer]), ChatTemplateRenderer(tokenizer), MAX_CONTEXT, "tiny")
    async with loop, open_gateway(served, MemoryStore(), key=new_key()) as gateway:
        setup = AgentSetup(loop, served=True, keeps_time=True)
        yield LocalWorker({(Split.TRAIN, TASK_SET): setup}, gateway.policies())


def require_one_chain(rollout: Rollout, turns: int) -> None:
    """Raise unless the rollout is scored, with all its turns in one chain."""
    chains = rollout.episode.chains if rollout.episode else ()
    counts = [len(turns_of(chain)) for chain in chains]
    if not isinstance(rollout.reward, Scored) or counts != [turns]:
        raise BenchError(
            f"rollout {rollout.key} has chains of {counts} turns, and is {rollout.reward}",
            remedy=f"every program must end well, with one chain of {turns} turns",
        )


if __name__ == "__main__":
    asyncio.run(main(Port()))
