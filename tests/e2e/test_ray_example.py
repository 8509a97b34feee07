"""The example on a Ray cluster keeps its promise: the model learns, although Ray kills one actor of each kind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loopwright.build import open_run
from loopwright.build.running import Run
from loopwright.config import load
from loopwright.runs.run_folder import RunFolder
from loopwright.track.jsonl import read_jsonl

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic_ray.yaml"
VICTIMS = {3: "loops", 8: "judgers", 13: "engines", 18: "gateway"}
"""After which step an actor of which role is killed."""
DEADLINE = 1800


def actors(role: str) -> list[Any]:
    """The living actors of a role in this process's cluster, as the driver holds them."""
    from loopwright.cluster.remote_host import RemoteHost

    # No public function gives them: whoever holds a run must not need to know where its parts are.
    gc.unfreeze()  # a run freezes what it has at its start
    hosts = [one for one in gc.get_objects() if type(one) is RemoteHost]
    return [host for host in hosts if host.is_alive and host.name.startswith(role)]


async def until(condition: Callable[[], bool], training: asyncio.Task[Any]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition() and not training.done():
            await asyncio.sleep(0.05)
    assert not training.done(), training.exception() or "the run ended too soon"


async def lose_one(role: str, training: asyncio.Task[Any]) -> None:
    """Kill an actor of this role, and wait until another one has taken its place."""
    import ray

    before = actors(role)
    ray.kill(before[0]._handle)
    await until(lambda: not before[0].is_alive, training)
    await until(lambda: len(actors(role)) == len(before), training)


async def train_with_kills(folder: Path) -> None:
    overrides = [f"trainer.run_dir={folder}", "trainer.export=false"]
    async with open_run(load(EXAMPLE, overrides), cache=folder.parent, stop=asyncio.Event(), env=os.environ) as run:
        training = asyncio.create_task(run.train())
        for step, role in VICTIMS.items():
            await until(partial(reached, run, step), training)
            await lose_one(role, training)
        await training


def reached(run: Run, step: int) -> bool:
    return run.learner.version >= step


def loopwright(*arguments: object) -> str:
    command = [sys.executable, "-m", "loopwright.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_ray_example_learns_and_survives_the_loss_of_each_kind_of_actor(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    asyncio.run(train_with_kills(folder.path))
    evaluations = [record for record in read_jsonl(folder.metrics) if "eval/eval/sampled/reward" in record]
    before, after = (evaluations[number]["eval/eval/sampled/reward"] for number in (0, -1))
    print(f"T=1 {before:.3f} -> {after:.3f}")
    assert after >= before + 0.3
    loopwright("audit", folder.path)
    # Fed the same groups in one process, the first step gives the same numbers.
    numbers = json.loads(loopwright("replay", folder.path, "--step", 1, "--json"))["numbers"]
    assert numbers["grad_norm"]["replayed"] == pytest.approx(numbers["grad_norm"]["recorded"], rel=1e-5)
    first = next(record for record in read_jsonl(folder.metrics) if "learner/mismatch_max" in record)
    assert first["learner/mismatch_max"] < 1e-4
