"""Runs whose sessions are on a gateway of its own: in this process, in another one, killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from loopwright.build import ForRuns, open_run, serve_gateway
from loopwright.config import load
from loopwright.gateway.server import Address
from loopwright.runs.auditing.audit import audit
from loopwright.runs.stored_run import StoredRun
from loopwright.track.jsonl import read_jsonl
from loopwright.types import Failed, FailureCause, Scored, Thinking

WriteConfig = Callable[..., Path]
KEY = "the-key-of-the-gateway"
DEADLINE = 240.0

PROGRAM = """
import json, os, sys, time, urllib.request

def ask(messages):
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["choices"][0]["message"]

question = {"role": "user", "content": sys.stdin.read()}
said = ask([question])
time.sleep(float(os.environ.get("PAUSE", 0)))
ask([question, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "Go on."}])
"""

GATED = """
import itertools, json, os, time, urllib.request

# Each program has a number. Those below FREE do not wait; the next 3 wait for the file `go`, the others for `all`.
place, free = os.environ["GATE"], int(os.environ["FREE"])
for number in itertools.count():
    try:
        os.close(os.open(f"{place}/started-{number}", os.O_CREAT | os.O_EXCL))
        break
    except FileExistsError:
        pass
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}).encode()
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
urllib.request.urlopen(request, timeout=60).read()
open(f"{place}/asked-{number}", "w").close()
gate = "go" if number < free + 3 else "all"
while number >= free and not os.path.exists(f"{place}/{gate}"):
    time.sleep(0.01)
open("reward.txt", "w").write(str(number % 2))
"""

AGENT = """
import httpx

async def agent(task, base_url, api_key):
    headers = {"authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as http:
        for _ in range(2):
            body = {"model": "policy", "messages": list(task.messages)}
            (await http.post(f"{base_url}/chat/completions", json=body)).raise_for_status()
"""


def program(pause: float = 0.0) -> dict[str, Any]:
    command = [sys.executable, "{config}/program.py"]
    runner = {"kind": "command", "command": command, "stdin": "instruction", "env": {"PAUSE": str(pause)}}
    return {"kind": "remote", "judger": "vowels", "runner": runner}


def settings(url: str, agent: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "agent": agent,
        "gateway": {"url": url, "key_env": "GATEWAY_KEY"},
        "trainer__groups_per_step": 2,
        "trainer__steps": 2,
        "trainer__checkpoint_every": 1,
        "trainer__export": False,
        "eval": None,
        **more,
    }


def sessions(url: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{url}/sessions", headers={"authorization": f"Bearer {KEY}"})
    return list(answer.json()["sessions"])


async def test_a_run_trains_through_a_gateway_that_it_does_not_serve(write_config: WriteConfig, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    store = tmp_path / "gateway.sqlite"
    options: dict[str, Any] = {"key": KEY, "renderer": "auto", "thinking": Thinking.KEEP}
    async with serve_gateway(ForRuns(), Address(), store=store, **options) as gateway:
        agent = {"kind": "callable", "path": "agent.py:agent", "judger": "vowels"}
        file = write_config(**settings(f"{gateway.base_url}/", agent))
        loaded = load(file, [], {"GATEWAY_KEY": KEY}, files=True)
        async with open_run(loaded, cache=tmp_path, stop=asyncio.Event(), env=os.environ) as run:
            assert await run.train()
        assert list(gateway.sessions) == [], "the run has left nothing"
        assert gateway.exchange.offer.name is None
    assert audit(run.folder.rollouts).is_clean
    rollouts = [one for step in (1, 2) for one in StoredRun(run.folder.rollouts).rollouts(step)]
    assert len(rollouts) == 2 * 2 * 4
    for one in rollouts:
        assert one.episode is not None
        assert one.episode.drift is not None
        assert {version for chain in one.episode.chains for version in chain.versions[chain.mask]} <= {0, 1}
    assert KEY.encode() not in store.read_bytes()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_gateway(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """A gateway for runs, in a process of its own. It returns when it listens."""
    command = [sys.executable, "-m", "loopwright.cli", "gateway", "--for-runs", "--port", str(port)]
    command += ["--store", str(folder / "gateway.sqlite")]
    env = {**os.environ, "LOOPWRIGHT_GATEWAY_KEY": KEY}
    with (folder / "gateway.txt").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, (folder / "gateway.txt").read_text()
    assert json.loads(line)["port"] == port
    return process


def start_run(file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "loopwright.cli", "train", str(file)]
    env = {**os.environ, "GATEWAY_KEY": KEY}
    with (file.parent / "output.txt").open("ab") as output:
        return subprocess.Popen(command, cwd=file.parent, stdout=output, stderr=subprocess.STDOUT, env=env)


@contextmanager
def ended(*processes: subprocess.Popen[bytes]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Ends these processes, and those that are added, whatever happens."""
    listed = list(processes)
    try:
        yield listed
    finally:
        for process in listed:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def until(done: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + DEADLINE
    while not done():
        assert process.poll() is None, (folder / "output.txt").read_text()
        assert time.monotonic() < deadline, (folder / "output.txt").read_text()
        time.sleep(0.01)


def finish(process: subprocess.Popen[bytes], folder: Path) -> None:
    assert process.wait(timeout=DEADLINE) == 0, (folder / "output.txt").read_text()


def steps(folder: Path) -> int:
    return max((record["step"] for record in read_jsonl(folder / "run" / "metrics.jsonl")), default=0)


@pytest.mark.real
def test_a_gateway_that_is_killed_and_started_again_in_the_middle_loses_nothing(
    write_config: WriteConfig, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    file = write_config(**settings(url, program(pause=0.5), trainer__steps=3))
    with ended(gateway := start_gateway(tmp_path, port), run := start_run(file)) as processes:
        until(lambda: steps(tmp_path) >= 1 and len(sessions(url)) > 4, run, tmp_path)
        gateway.send_signal(signal.SIGKILL)
        gateway.wait()
        processes.append(again := start_gateway(tmp_path, port))
        finish(run, tmp_path)
        assert sessions(url) == []
        assert "libtorch" not in Path(f"/proc/{again.pid}/maps").read_text()
    audited = audit(tmp_path / "run" / "rollouts.sqlite")
    assert (audited.findings, audited.lineages) == ((), 1)
    stored = StoredRun(tmp_path / "run" / "rollouts.sqlite")
    assert stored.steps() == (1, 2, 3)
    rewards = [one.reward for step in stored.steps() for one in stored.rollouts(step)]
    failed = [one for one in rewards if isinstance(one, Failed)]
    assert {one.cause for one in failed} <= {FailureCause.INFRA}, "no program is blamed for the gateway"
    assert len(rewards) - len(failed) == 3 * 2 * 4


@pytest.mark.real
def test_a_killed_run_that_is_resumed_takes_its_gateway_over(write_config: WriteConfig, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    file = write_config(**settings(url, program(pause=0.5), trainer__steps=3))
    with ended(start_gateway(tmp_path, port), run := start_run(file)) as processes:
        until(lambda: steps(tmp_path) >= 1 and len(sessions(url)) > 4, run, tmp_path)
        run.send_signal(signal.SIGKILL)
        run.wait()
        left = {one["id"] for one in sessions(url) if one["state"] == "open"}
        assert left
        processes.append(resumed := start_run(file))
        until(lambda: any(one["id"] not in left for one in sessions(url)), resumed, tmp_path)
        assert not {one["id"] for one in sessions(url) if one["state"] == "open"} & left
        finish(resumed, tmp_path)
        assert sessions(url) == []
    audited = audit(tmp_path / "run" / "rollouts.sqlite")
    assert (audited.findings, audited.lineages) == ((), 2)
    assert StoredRun(tmp_path / "run" / "rollouts.sqlite").steps() == (1, 2, 3)


@contextmanager
def killed_before_it_can_store(folder: Path, url: str, run: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kills the run when three of its eight programs have completed and their rollouts could not be stored."""
    with closing(sqlite3.connect(folder / "run" / "rollouts.sqlite", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        (folder / "go").touch()
        until(lambda: sum(one["has_outcome"] for one in sessions(url)) == 3, run, folder)
        run.send_signal(signal.SIGKILL)
        run.wait()
        yield


def gated(url: str, folder: Path, *, free: int, **more: Any) -> dict[str, Any]:
    runner = {
        "kind": "command",
        "command": [sys.executable, "{config}/gated.py"],
        "env": {"GATE": str(folder), "FREE": str(free)},
    }
    agent = {"kind": "remote", "runner": runner, "reward": {"kind": "file", "path": "reward.txt"}}
    return settings(url, agent, trainer__checkpoint_every=100, **more)


@pytest.mark.real
@pytest.mark.parametrize("lost_weights", [False, True], ids=["kept", "rolled back"])
def test_what_a_killed_run_had_completed_is_kept_if_its_weights_are(
    write_config: WriteConfig, tmp_path: Path, *, lost_weights: bool
) -> None:
    """D1. Three programs had completed, and five were running. If the weights that sampled them were never written to a
    checkpoint, their groups are rolled back and drawn again."""
    (tmp_path / "gated.py").write_text(GATED)
    port, step = free_port(), 2 if lost_weights else 1
    url, free = f"http://127.0.0.1:{port}", 8 * (step - 1)
    file = write_config(**gated(url, tmp_path, free=free, trainer__steps=step))
    database = tmp_path / "run" / "rollouts.sqlite"
    with ended(start_gateway(tmp_path, port), run := start_run(file)) as processes:
        until(lambda: len(list(tmp_path.glob("asked-*"))) == free + 8, run, tmp_path)
        with killed_before_it_can_store(tmp_path, url, run):
            killed = time.time()
        (tmp_path / "all").touch()
        processes.append(resumed := start_run(file))
        finish(resumed, tmp_path)
        assert sessions(url) == []
    audited = audit(database)
    assert (audited.findings, audited.lineages) == ((), 2)
    rollouts = StoredRun(database).rollouts(step)
    assert len(rollouts) == 8
    assert all(isinstance(one.reward, Scored) for one in rollouts)
    kept = [one for one in rollouts if one.timing.started < killed]
    assert len(kept) == (0 if lost_weights else 3)
    made_again = 0 if lost_weights else 1
    assert [one.key.attempt for one in rollouts] == [0 if one in kept else made_again for one in rollouts]
    with closing(sqlite3.connect(database)) as db:
        rolled_back = db.execute("SELECT draw, round FROM groups WHERE status = 'rolled_back'").fetchall()
    assert rolled_back == ([(2, 0), (3, 0)] if lost_weights else [])
    assert len(list(tmp_path.glob("started-*"))) == free + 8 + 8 - len(kept), "what was kept is not sampled again"
