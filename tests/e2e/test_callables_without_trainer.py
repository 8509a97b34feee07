"""`loopwright eval` and `rollout` of agents that talk HTTP: whatever they do is told, and no failure is a 0 (R2)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli import main
from loopwright.runs.stored_run import StoredRun
from loopwright.types import Failed, FailureCause, Rollout, Scored, StopReason

WriteConfig = Callable[..., Path]
SAMPLES = 8
TOGETHER = 5 * SAMPLES
"""More agents than any pool of threads that Python makes by itself has room for."""

AGENTS = f'''
import asyncio, pathlib, threading, time
import httpx

HERE = pathlib.Path(__file__).parent
meeting = threading.Barrier({TOGETHER})

def question(task, key):
    return {{
        "url": "chat/completions",
        "json": {{"model": "m", "messages": list(task.messages)}},
        "headers": {{"authorization": f"Bearer {{key}}"}},
        "timeout": 60,
    }}

async def odd(task, base_url, api_key):
    """Each task is met in another way."""
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as client:
        match task.id:
            case "e0":
                raise ValueError("no idea")
            case "e1":
                return "42, and I asked nobody"
            case "e2":
                await asyncio.sleep(60)
            case "e3":
                asked = [client.post(**question(task, api_key)) for _ in range(3)]
                return str([reply.status_code for reply in await asyncio.gather(*asked)])
            case "e4":
                await client.post(**question(task, api_key))
                await asyncio.sleep(60)

def blocking(task, base_url, api_key):
    """Goes on only when all others are there, too: none of them waits for another's thread."""
    meeting.wait(60)
    httpx.post(**{{**question(task, api_key), "url": f"{{base_url}}/chat/completions"}}, trust_env=False, verify=False)
    return "together"

async def stuck(task, base_url, api_key):
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as client:
        await client.post(**question(task, api_key))
    (HERE / "started").touch()
    await asyncio.to_thread(time.sleep, 0)
    await asyncio.sleep(600)

def stuck_thread(task, base_url, api_key):
    (HERE / "started").touch()
    time.sleep(600)
'''


@pytest.fixture
def write(write_config: WriteConfig, tmp_path: Path) -> WriteConfig:
    def write(function: str, **changes: Any) -> Path:
        (tmp_path / "agents.py").write_text(AGENTS)
        agent = {"kind": "callable", "path": f"agents.py:{function}", "judger": "vowels"}
        changes = {"eval__greedy": False, "eval__samples": 1, "produce__max_attempts": 1, **changes}
        file = write_config(agent=dict(agent), eval__agent=dict(agent), **changes)
        (tmp_path / "judger.py").write_text("async def judge(task, episode):\n    return float(len(episode.answer))\n")
        return file

    return write


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return int(left.value.code or 0)


def evaluated(folder: Path) -> dict[str, Rollout]:
    return {one.task.id: one for one in StoredRun(folder / "rollouts.sqlite").eval_rollouts(0, "eval", "sampled")}


@pytest.mark.real
def test_every_way_to_fail_is_told_and_none_is_a_reward(
    write: WriteConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("eval", write("odd", produce__agent_timeout_seconds=5.0), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["metrics"]["eval/eval/sampled/scored"], found["metrics"]["eval/eval/sampled/failed"]) == (2, 3)
    made = evaluated(tmp_path / "run" / "evals" / "tiny")
    failures = {task: one.reward for task, one in made.items() if isinstance(one.reward, Failed)}
    assert {task: (failed.cause, failed.error) for task, failed in failures.items()} == {
        "e0": (FailureCause.AGENT, "ValueError"),
        "e1": (FailureCause.AGENT, "NoModelCallError"),
        "e2": (FailureCause.INFRA, "Timeout"),
    }
    assert "without an answer of the model" in failures["e1"].detail
    parallel, late = made["e3"].episode, made["e4"].episode
    assert parallel is not None
    assert late is not None
    assert parallel.answer == "[200, 200, 200]"
    assert len(parallel.chains) == 3
    assert late.stop is StopReason.BUDGET
    assert isinstance(made["e4"].reward, Scored), "time is the agent's own budget: it is graded"


def test_blocking_agents_do_not_wait_for_one_another(write: WriteConfig, tmp_path: Path) -> None:
    before = threading.active_count()
    assert command("eval", write("blocking", eval__samples=SAMPLES)) == 0
    stored = StoredRun(tmp_path / "run" / "evals" / "tiny" / "rollouts.sqlite").eval_rollouts(0, "eval", "sampled")
    assert [one.episode.answer for one in stored if one.episode] == ["together"] * TOGETHER
    assert threading.active_count() <= before + 1, "their threads end with them"


@pytest.mark.parametrize(("name", "function"), [("eval", "stuck"), ("rollout", "stuck"), ("rollout", "stuck_thread")])
@pytest.mark.real
def test_ctrl_c_ends_it_although_agents_are_in_flight(
    write: WriteConfig, tmp_path: Path, name: str, function: str
) -> None:
    words = [sys.executable, "-m", "loopwright.cli", name, str(write(function))]
    started, deadline = tmp_path / "started", time.monotonic() + 120
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not started.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            assert started.exists()
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Stopped. " in told
    assert "Traceback" not in told
