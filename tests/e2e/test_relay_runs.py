"""Runs that train through a relay: no port of the training side is open, and whatever is cut or killed, the tokens are
exact."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loopwright.runs.auditing.audit import audit
from loopwright.runs.stored_run import StoredRun
from loopwright.track.jsonl import read_jsonl
from loopwright.types import Failed, FailureCause, TokenChain

WriteConfig = Callable[..., Path]
KEY = "the-key-of-the-gateway"
DEADLINE = 240.0
STEPS = 10
FRESH = "learner/mismatch_mean_s0"
"""How far the engine's logprobs are from the learner's, for tokens of the version that is trained."""
TRAINING, AGENTS, GATEWAY = "training", "agents", "gateway"

PROGRAM = """
import json, os, sys, urllib.request

def ask(messages):
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["choices"][0]["message"]

question = {"role": "user", "content": sys.stdin.read()}
said = ask([question])
ask([question, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "Go on."}])
"""


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def can_make_namespaces() -> bool:
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("ip", "ss", "nsenter")):
        return False
    name = f"lw-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], check=False)
    return made


@dataclass(frozen=True)
class Sides:
    """Three namespaces. The training side and the agents each have a cable to the gateway, and to nobody else."""

    tag: str

    def inside(self, side: str) -> list[str]:
        """What a command begins with that runs on that side."""
        return ["nsenter", f"--net=/var/run/netns/{self.name(side)}"]

    def name(self, side: str) -> str:
        return f"lw-{side}-{self.tag}"

    def listeners(self, side: str) -> list[str]:
        lines = run(*self.inside(side), "ss", "-Htln").splitlines()
        return [address for address in (line.split()[3] for line in lines) if not address.startswith("127.")]

    def cut(self) -> None:
        """Break all connections of the training side with the gateway."""
        run(*self.inside(GATEWAY), "ss", "-K", "dst", "10.213.1.2")


@contextmanager
def three_sides() -> Iterator[Sides]:
    sides = Sides(str(os.getpid()))
    made: list[str] = []
    try:
        for side in (TRAINING, AGENTS, GATEWAY):
            run("ip", "netns", "add", sides.name(side))
            made.append(sides.name(side))
            run("ip", "-n", sides.name(side), "link", "set", "lo", "up")
        for number, side in ((1, TRAINING), (2, AGENTS)):
            near, far = f"lw{number}a{sides.tag}"[:15], f"lw{number}b{sides.tag}"[:15]
            run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
            for end, place, host in ((near, sides.name(GATEWAY), 1), (far, sides.name(side), 2)):
                run("ip", "link", "set", end, "netns", place)
                run("ip", "-n", place, "addr", "add", f"10.213.{number}.{host}/24", "dev", end)
                run("ip", "-n", place, "link", "set", end, "up")
        yield sides
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


class Processes:
    """The processes of one test, which end with it."""

    def __init__(self, sides: Sides, folder: Path) -> None:
        self._sides = sides
        self.folder = folder
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, side: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [*self._sides.inside(side), sys.executable, "-m", "loopwright.cli", *arguments]
        env = {**os.environ, "LOOPWRIGHT_GATEWAY_KEY": KEY, "GATEWAY_KEY": KEY}
        with (self.folder / f"{side}.txt").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env=env)
        self._all.append(process)
        return process

    def said(self, side: str) -> str:
        return (self.folder / f"{side}.txt").read_text()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        for process in self._all:
            self.kill(process)

    def gateway(self) -> subprocess.Popen[bytes]:
        listens = ["--host", "0.0.0.0", "--port", "8100", "--advertise-url", "http://10.213.2.1:8100"]
        return self.start(GATEWAY, "gateway", "--relay", *listens, "--store", str(self.folder / "gateway.sqlite"))

    def training(self, file: Path) -> subprocess.Popen[bytes]:
        return self.start(TRAINING, "train", str(file))

    def until(self, done: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not done():
            assert process.poll() is None, self.said(TRAINING)
            assert time.monotonic() < deadline, self.said(TRAINING)
            time.sleep(0.02)

    def steps(self) -> int:
        return max((record["step"] for record in read_jsonl(self.folder / "run" / "metrics.jsonl")), default=0)


def settings(sides: Sides, **more: Any) -> dict[str, Any]:
    command = [*sides.inside(AGENTS), sys.executable, "{config}/program.py"]
    runner = {"kind": "command", "command": command, "stdin": "instruction"}
    return {
        "agent": {"kind": "remote", "judger": "vowels", "runner": runner},
        "gateway": {"url": "http://10.213.1.1:8100", "key_env": "GATEWAY_KEY", "relay": True},
        "rollout__max_new_tokens": 96,
        "trainer__groups_per_step": 1,
        "trainer__steps": STEPS,
        "trainer__checkpoint_every": 2,
        "trainer__export": False,
        "eval": None,
        **more,
    }


def check_run(folder: Path, lineages: int, fresh_steps: int) -> list[TokenChain]:
    """Every step is there, no program was blamed, and the engine's logprobs are those of the learner in at least
    so many steps that train tokens of the newest version. Gives the trained chains."""
    database = folder / "run" / "rollouts.sqlite"
    audited = audit(database)
    assert (audited.findings, audited.lineages) == ((), lineages)
    stored = StoredRun(database)
    assert stored.steps() == tuple(range(1, STEPS + 1))
    rollouts = [one for step in stored.steps() for one in stored.rollouts(step)]
    failed = [one.reward for one in rollouts if isinstance(one.reward, Failed)]
    assert {one.cause for one in failed} <= {FailureCause.INFRA}
    found = [record for record in read_jsonl(folder / "run" / "metrics.jsonl") if FRESH in record]
    assert len(found) >= fresh_steps
    assert all(record[FRESH] < 1e-4 for record in found), found
    return [chain for one in rollouts if one.episode for chain in one.episode.chains]


def versions_in(chains: Iterable[TokenChain]) -> set[int]:
    return {int(version) for chain in chains for version in chain.versions[chain.mask]}


@pytest.mark.real
@pytest.mark.skipif(not can_make_namespaces(), reason="network namespaces need root, ip, ss and nsenter")
def test_a_run_trains_through_a_relay_that_is_cut_and_killed(write_config: WriteConfig, tmp_path: Path) -> None:
    """S3, D1. The training side reaches only the gateway, the agents reach only the gateway, and nobody reaches the
    training side."""
    (tmp_path / "program.py").write_text(PROGRAM)
    with three_sides() as sides:
        file = write_config(**settings(sides))
        made = Processes(sides, tmp_path)
        try:
            gateway, training = made.gateway(), made.training(file)
            made.until(lambda: made.steps() >= 1, training)
            assert sides.listeners(TRAINING) == []
            assert sides.listeners(AGENTS) == []
            for step in (2, 3, 4):
                sides.cut()
                made.until(lambda step=step: made.steps() >= step, training)  # type: ignore[misc]
            made.kill(gateway)
            gateway = made.gateway()
            made.until(lambda: made.steps() >= 6, training)
            made.kill(training)
            resumed = made.training(file)
            assert resumed.wait(timeout=DEADLINE) == 0, made.said(TRAINING)
            assert made.said(TRAINING).count("not connected to the gateway") >= 4, "three cuts, and a gateway that died"
        finally:
            made.end()
    chains = check_run(tmp_path, lineages=2, fresh_steps=STEPS // 2 + 1)
    assert versions_in(chains) >= set(range(STEPS)), "every version of the weights has sampled"
    assert not (tmp_path / "run" / "door.json").exists()
    assert KEY.encode() not in (tmp_path / "gateway.sqlite").read_bytes()
    assert json.loads(made.said(GATEWAY).splitlines()[0])["port"] == 8100


@pytest.mark.real
@pytest.mark.skipif(not can_make_namespaces(), reason="network namespaces need root, ip, ss and nsenter")
def test_a_disaggregated_run_updates_its_weights_while_answers_come_through_a_relay(
    write_config: WriteConfig, tmp_path: Path
) -> None:
    """T4. The engine has a process of its own on the training side, and gets new weights while programs wait for
    answers: an answer that was begun goes on, and each token has the version that sampled it."""
    (tmp_path / "program.py").write_text(PROGRAM)
    # Long answers, so that an update comes in the middle of some, however slowly programs start.
    apart = {"produce": {"kind": "async"}, "rollout__max_new_tokens": 400, "trainer__kind": "disaggregated"}
    with three_sides() as sides:
        made = Processes(sides, tmp_path)
        try:
            made.gateway()
            training = made.training(write_config(**settings(sides, **apart, rollout__engine={"threads": 1})))
            made.until(lambda: made.steps() >= 2, training)
            assert sides.listeners(TRAINING) == []
            sides.cut()
            assert training.wait(timeout=DEADLINE) == 0, made.said(TRAINING)
        finally:
            made.end()
    # How many groups are older than the newest version is a matter of timing. The first one never is.
    chains = check_run(tmp_path, lineages=1, fresh_steps=1)
    assert len(versions_in(chains)) > 2
    # One call samples a run of tokens: where its version changes, the update came in the middle of an answer.
    assert any(changes_within_an_answer(chain) for chain in chains)


def changes_within_an_answer(chain: TokenChain) -> bool:
    neighbours = chain.mask[1:] & chain.mask[:-1]
    return bool((neighbours & (chain.versions[1:] != chain.versions[:-1])).any())
