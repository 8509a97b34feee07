"""A run that is killed at random moments loses nothing, trains nothing twice and leaves no process behind (D1, R3)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopwright.config import load
from loopwright.types import PauseMode
from tools.chaos.chaos import Chaos

WriteConfig = Callable[..., Path]

# Not async, so that there are worker processes to be killed as well.
JUDGER = """
import zlib

def judge(task, episode):
    return zlib.crc32(episode.answer.encode()) % 2
"""


# With a filter, so that there are groups that are archived untrained. The weights hardly move: a model that came to say
# one thing only would leave no group with a signal, which ends the run.
COMMON = {"learner": {"lr": 1e-6}}
KINDS: dict[str, dict[str, Any]] = {
    "colocated": {"produce": {"filter": "no_signal"}},
    **{
        f"disaggregated, {in_flight}": {
            "trainer__kind": "disaggregated",
            "produce": {"kind": "async", "max_staleness": 1, "in_flight": in_flight.value, "filter": "no_signal"},
        }
        for in_flight in PauseMode
    },
}
ON_ACTORS = {"num_actors": 2, "num_cpus_per_actor": 0.25}
ALL_ON_ACTORS: dict[str, Any] = {
    "trainer__kind": "disaggregated",
    "produce": {"kind": "async", "max_staleness": 1},
    "agent": {"kind": "callable", "path": "agent.py:agent", "judger": "vowels", **ON_ACTORS},
    "eval": None,
    "judgers__vowels": {"kind": "native", "path": "judger.py:judge", "timeout_seconds": 60, **ON_ACTORS},
    "rollout__engine": {"kind": "torch", **ON_ACTORS},
    "gateway": {"num_actors": 1, "num_cpus_per_actor": 0.25},
    "cluster": {"num_cpus": 2},
}
RANKS: dict[str, Any] = {
    "learner": {"lr": 1e-6, "ranks": 2},
    "model__device": "cpu",
    "rollout__engine": {"num_engines": 1},
    "eval": None,
    # A rank that is stopped is named so late.
    "trainer__stall_seconds": 20,
}
AGENT = """
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

async def agent(task, base_url, api_key):
    http = DefaultAsyncHttpxClient(verify=False)
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http) as client:
        await client.chat.completions.create(model="policy", messages=list(task.messages))
"""


def wreak(file: Path, kills: int, seed: int) -> None:
    (file.parent / "judger.py").write_text(JUDGER)
    (file.parent / "agent.py").write_text(AGENT)
    chaos = Chaos(file, Path(load(file).config.trainer.run_dir), random.Random(seed))
    chaos.run(kills)


@pytest.mark.real
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["colocated", "disaggregated, abort"])
def test_a_run_survives_three_kills(write_config: WriteConfig, kind: str) -> None:
    wreak(write_config(trainer__steps=20, **COMMON, **KINDS[kind]), kills=3, seed=1)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_survives_twenty_kills(write_config: WriteConfig, kind: str) -> None:
    wreak(write_config(trainer__steps=60, **COMMON, **KINDS[kind]), kills=20, seed=0)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [{}, {"trainer__kind": "disaggregated", "produce__kind": "async"}])
def test_a_run_of_ranks_survives_ten_kills_of_itself_and_of_ranks(
    write_config: WriteConfig, kind: dict[str, Any]
) -> None:
    wreak(write_config(trainer__steps=40, **RANKS, **kind), kills=10, seed=0)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_run_on_actors_survives_twenty_kills_of_itself_and_of_actors(write_config: WriteConfig) -> None:
    wreak(write_config(trainer__steps=60, **COMMON, **ALL_ON_ACTORS), kills=20, seed=0)
