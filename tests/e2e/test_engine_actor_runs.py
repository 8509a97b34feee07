"""Whole disaggregated runs with engines on actors of a cluster that the run starts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from joined_cluster import joined_cluster

from loopwright.build import open_run
from loopwright.config import load
from loopwright.runs.run_folder import RunFolder
from loopwright.track.jsonl import read_jsonl

WriteConfig = Callable[..., Path]
DEADLINE = 120
ON_ACTORS: dict[str, Any] = {
    "produce": {"kind": "async"},
    "rollout__engine": {"kind": "torch", "num_actors": 2, "num_cpus_per_actor": 0.25},
    "trainer__kind": "disaggregated",
}

pytestmark = pytest.mark.real


def living_actors() -> set[int]:
    """The processes of the actors of this process's cluster."""
    import ray

    return {one["Pid"] for one in ray._private.state.actors().values() if one["State"] == "ALIVE"}


async def until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(DEADLINE):
        while not (found := condition()):
            await asyncio.sleep(0.01)
    return found


def losses(folder: RunFolder) -> list[str]:
    """The last words of the engines that were lost."""
    events = read_jsonl(folder.events) if folder.events.exists() else ()
    return [event["facts"]["last_words"] for event in events if event["name"] == "engine_lost"]


def audited(folder: RunFolder) -> None:
    audit = subprocess.run([sys.executable, "-m", "loopwright.cli", "audit", str(folder.path)], capture_output=True)
    assert audit.returncode == 0, audit.stdout.decode() + audit.stderr.decode()


async def test_a_run_trains_with_engines_on_actors_and_survives_the_death_of_one(write_config: WriteConfig) -> None:
    stop = asyncio.Event()
    file = write_config(**ON_ACTORS, trainer__steps=10_000, rollout__max_new_tokens=40)
    async with open_run(load(file), cache=file.parent, stop=stop, env=os.environ) as opened:
        training = asyncio.create_task(opened.train())
        await until(lambda: opened.learner.version >= 2 or training.done())
        killed, other = living_actors()
        os.kill(killed, signal.SIGKILL)
        await until(lambda: training.done() or len(living_actors() - {killed, other}) == 1)
        started = living_actors()
        reached = opened.learner.version
        await until(lambda: training.done() or opened.learner.version > reached + 2)
        stop.set()
        await training
    folder = opened.folder
    (words,) = losses(folder)
    assert "ActorDiedError" in words
    audited(folder)
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (killed, other, *started)))


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a run that joins a cluster of two nodes."""
    with joined_cluster(tmp_path, 4, 4) as cluster:
        yield {**cluster.environment, "LOOPWRIGHT_CLUSTER__ADDRESS": cluster.address}


def test_a_run_trains_with_engines_on_another_node(write_config: WriteConfig, joined: dict[str, str]) -> None:
    """Their weights come through the object store, and each version is proven."""
    file = write_config(**ON_ACTORS, rollout__nodes=1, trainer__steps=4)
    told = "import logging; logging.basicConfig(level=logging.INFO); from loopwright.cli import main; main()"
    command = [sys.executable, "-c", told, "train", str(file)]
    done = subprocess.run(command, env=joined, cwd=file.parent, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("by object store (the engine is an actor on another node)") == 2, done.stderr
    folder = RunFolder(file.parent / "run")
    assert not losses(folder)
    audited(folder)
