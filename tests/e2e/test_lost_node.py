"""A run on three nodes loses one of them, with an agent, a judger and an engine on it that have no room elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.runs.auditing.audit import audit
from loopwright.track.jsonl import read_jsonl

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

WriteConfig = Callable[..., Path]
MARK = "LOST_NODE_TEST"
DEADLINE = 300.0
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


class Nodes:
    """The program `ray_nodes.py`, with three nodes."""

    def __init__(self, program: subprocess.Popen[str], mark: str) -> None:
        self._program = program
        self._mark = f"{MARK}={mark}".encode()
        assert program.stdout is not None
        self.address, self.token = program.stdout.readline().split()
        self.tell("add")

    def tell(self, what: str) -> None:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(f"{what}\n")
        self._program.stdin.flush()
        # Ray writes to its output, too, when a node is lost.
        assert "done\n" in iter(self._program.stdout.readline, "")

    def actors(self) -> set[int]:
        return {int(path.name) for path in Path("/proc").glob("[0-9]*") if self._is_actor(path)}

    def _is_actor(self, path: Path) -> bool:
        try:
            return (path / "cmdline").read_bytes().startswith(b"ray::Host") and self._mark in (
                path / "environ"
            ).read_bytes().split(b"\0")
        except OSError:
            return False


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    command = [sys.executable, str(Path(__file__).parents[1] / "ray_nodes.py"), "3"]
    env = {**os.environ, MARK: str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as program:
        yield Nodes(program, str(tmp_path))
        program.communicate(timeout=DEADLINE)


def test_a_run_goes_on_without_a_lost_node_and_takes_a_new_one(
    write_config: WriteConfig, nodes: Nodes, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    three: dict[str, Any] = {"num_actors": NODES, "num_cpus_per_actor": 1}
    agent = {"kind": "python", "path": "agent.py:Agent", "judger": "vowels", **three}
    file = write_config(
        agent=agent,
        eval=None,
        judgers__vowels={"kind": "native", "path": "judger.py:judge", **three},
        rollout__engine={"kind": "torch", **three},
        cluster={"address": nodes.address, "strategy": {"loops": "spread"}},
        produce={"kind": "async"},
        learner={"lr": 1e-6},
        trainer__kind="disaggregated",
        trainer__steps=10_000,
    )
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": nodes.token, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    metrics = tmp_path / "run" / "metrics.jsonl"

    def step() -> int:
        return max((one["step"] for one in read_jsonl(metrics)), default=0) if metrics.exists() else 0

    def workers() -> set[int]:
        return {int(path.name.split("-")[1]) for path in tmp_path.glob("worked-*")}

    with (tmp_path / "output.txt").open("wb") as output:
        command = [sys.executable, "-m", "loopwright.cli", "train", str(file)]
        training = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output, env={**os.environ, **token})
    try:
        until(lambda: step() >= 2, "it trains", training)
        before = nodes.actors()
        assert len(before) == 3 * NODES
        nodes.tell("lose")
        until(lambda: len(nodes.actors()) == 2 * NODES, "the lost actors are gone", training)
        reached = step()
        until(lambda: step() >= reached + 3, "it goes on with the rest", training)
        assert nodes.actors() < before
        nodes.tell("add")
        until(lambda: len(nodes.actors()) == 3 * NODES, "the missing actors are started", training)
        until(lambda: bool(workers() & (nodes.actors() - before)), "a new agent takes work", training)
        reached = step()
        until(lambda: step() >= reached + 2, "it goes on with all", training)
        training.terminate()
        assert training.wait(DEADLINE) == 0, (tmp_path / "output.txt").read_text()
    finally:
        training.kill()
        training.wait()
    assert audit(tmp_path / "run" / "rollouts.sqlite").is_clean
