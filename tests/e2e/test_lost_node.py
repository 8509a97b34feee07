"""A run on three nodes loses one of them, with an agent, a judger and an engine on it that have no room elsewhere."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from joined_cluster import DEADLINE, JoinedCluster, actors_of, joined_cluster

from loopwright.runs.auditing.audit import audit
from loopwright.track.jsonl import read_jsonl

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

WriteConfig = Callable[..., Path]
NODES = 3

AGENT = """
import os
from pathlib import Path

class Agent:
    async def run(self, task, policy):
        (Path(__file__).parent / f"worked-{os.getpid()}").touch()
        reply = await policy.reply(task.messages)
        return [*task.messages, reply.message]
"""


def until(condition: Callable[[], bool], what: str, training: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert training.poll() is None, f"the run ended before {what}"
        assert time.monotonic() < deadline, f"waited {DEADLINE:g} s until {what}"
        time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[JoinedCluster]:
    with joined_cluster(tmp_path, *[NODES] * NODES) as joined:
        yield joined


def test_a_run_goes_on_without_a_lost_node_and_takes_a_new_one(
    write_config: WriteConfig, cluster: JoinedCluster, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    three: dict[str, Any] = {"num_actors": NODES, "num_cpus_per_actor": 1}
    agent = {"kind": "python", "path": "agent.py:Agent", "judger": "vowels", **three}
    file = write_config(
        agent=agent,
        eval=None,
        judgers__vowels={"kind": "native", "path": "judger.py:judge", **three},
        rollout__engine={"kind": "torch", **three},
        cluster={"address": cluster.address, "strategy": {"loops": "spread"}},
        produce={"kind": "async"},
        learner={"lr": 1e-6},
        trainer__kind="disaggregated",
        trainer__steps=10_000,
    )
    metrics = tmp_path / "run" / "metrics.jsonl"

    def step() -> int:
        return max((one["step"] for one in read_jsonl(metrics)), default=0) if metrics.exists() else 0

    def workers() -> set[int]:
        return {int(path.name.split("-")[1]) for path in tmp_path.glob("worked-*")}

    with (tmp_path / "output.txt").open("wb") as output:
        command = [sys.executable, "-m", "loopwright.cli", "train", str(file)]
        training = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output, env=cluster.environment)
    try:
        until(lambda: step() >= 2, "it trains", training)
        before = actors_of(tmp_path)
        assert len(before) == 3 * NODES
        cluster.tell("lose")
        until(lambda: len(actors_of(tmp_path)) == 2 * NODES, "the lost actors are gone", training)
        reached = step()
        until(lambda: step() >= reached + 3, "it goes on with the rest", training)
        assert actors_of(tmp_path) < before
        cluster.tell("add")
        until(lambda: len(actors_of(tmp_path)) == 3 * NODES, "the missing actors are started", training)
        until(lambda: bool(workers() & (actors_of(tmp_path) - before)), "a new agent takes work", training)
        reached = step()
        until(lambda: step() >= reached + 2, "it goes on with all", training)
        training.terminate()
        assert training.wait(DEADLINE) == 0, (tmp_path / "output.txt").read_text()
    finally:
        training.kill()
        training.wait()
    assert audit(tmp_path / "run" / "rollouts.sqlite").is_clean
