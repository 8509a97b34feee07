"""Whole runs whose agents are on actors, through `loopwright train`: they train, and survive the loss of an actor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_kill import finish, start, wait_for_step
from test_program_agents import WELL

from loopwright.agents.runners.marks import VARIABLE
from loopwright.runs.auditing.audit import audit
from loopwright.runs.stored_run import StoredRun
from loopwright.serve.marked_processes import ProcessTable
from loopwright.types import Failed, Rollout, Scored

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")]

WriteConfig = Callable[..., Path]

ON_ACTORS = {"num_actors": 2, "num_cpus_per_actor": 0.25}

SLOW = """
import asyncio, os
from pathlib import Path

HERE = Path(__file__).parent
(HERE / f"loop-{os.getpid()}").touch()

class Agent:
    async def run(self, task, policy):
        reply = await policy.reply(task.messages)
        busy = HERE / f"busy-{os.getpid()}"
        busy.touch()
        await asyncio.sleep(0.3)
        busy.unlink(missing_ok=True)
        return [*task.messages, reply.message]
"""


def is_sound(file: Path) -> bool:
    return audit(file.parent / "run" / "rollouts.sqlite").is_clean


def rollouts(file: Path) -> list[Rollout]:
    return [one.rollout for one in StoredRun(file.parent / "run" / "rollouts.sqlite").attempts()]


def on_actors(write_config: WriteConfig, agent: dict[str, Any], **changes: Any) -> Path:
    """A config whose agent is on two actors, in training and evaluation."""
    placed = {**agent, **ON_ACTORS}
    return write_config(agent=placed, **{"eval__agent": placed, **changes})


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_loop_actor_is_killed_in_the_middle_and_the_run_goes_on(write_config: WriteConfig) -> None:
    agent = {"kind": "python", "path": "slow.py:Agent", "judger": "vowels"}
    file = on_actors(write_config, agent, trainer__steps=4)
    (file.parent / "slow.py").write_text(SLOW)
    process = start(file)
    wait_for_step(file.parent / "run", 1, process)
    loops = sorted(file.parent.glob("loop-*"))
    assert len(loops) == 2, "training and evaluation share the actors, and the driver has no agent"
    pid = int(loops[0].name.removeprefix("loop-"))
    wait_for(file.parent / f"busy-{pid}")
    os.kill(pid, signal.SIGKILL)
    finish(process)
    assert is_sound(file)
    lost = [one for one in rollouts(file) if isinstance(one.reward, Failed)]
    assert {one.reward.error for one in lost if isinstance(one.reward, Failed)} == {"WorkerLostError"}
    again = {replace(one.key, attempt=one.key.attempt + 1) for one in lost}
    assert again <= {one.key for one in rollouts(file) if isinstance(one.reward, Scored)}
    assert len(list(file.parent.glob("loop-*"))) == 3, "it was started again"


def test_programs_on_actors_train_and_leave_nothing_behind(write_config: WriteConfig) -> None:
    command = {"kind": "command", "command": ["python", "{config}/agent.py"], "stdin": "instruction"}
    agent = {"kind": "remote", "runner": command, "reward": {"kind": "file", "path": "reward.json"}}
    file = on_actors(write_config, agent, judgers={}, trainer__steps=3, trainer__groups_per_step=2)
    (file.parent / "agent.py").write_text(WELL)
    finish(start(file))
    assert is_sound(file)
    made = rollouts(file)
    assert len(made) == 3 * 2 * 4
    assert not [one for one in made if isinstance(one.reward, Failed)]
    assert not list(ProcessTable(VARIABLE).marked())


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_example_of_programs_completes_three_steps_on_two_actors(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "agent_program.yaml"
    changes = {
        "agent.num_actors": 2,
        "agent.num_cpus_per_actor": 0.25,
        "eval": "null",  # its 200 tasks take minutes
        "trainer.steps": 3,
        "trainer.checkpoint_every": 3,
        "trainer.run_dir": tmp_path / "run",
    }
    assigned = [f"{name}={value}" for name, value in changes.items()]
    command = [sys.executable, "-m", "loopwright.cli", "train", str(example), *assigned]
    subprocess.run(command, cwd=tmp_path, timeout=1100, check=True)
    assert audit(tmp_path / "run" / "rollouts.sqlite").is_clean
    assert "loops 'train'  2" in (tmp_path / "run" / "actors" / "plan.log").read_text()
