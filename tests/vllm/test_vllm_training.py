"""Whole runs of SmolLM2 with real vLLM servers: two at once of which one is killed, one that sleeps while the learner
trains, and one that somebody else has started and that a resumed run uses again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from guarded_vllm import VLLM, guarded_vllm

from loopwright.build import open_run
from loopwright.config import load
from loopwright.models.smollm2 import smollm2_folder
from loopwright.runs.run_folder import RunFolder
from loopwright.serve.marked_processes import pids
from loopwright.track.jsonl import read_jsonl

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic_vllm.yaml"
CACHE = Path.home() / ".cache" / "loopwright" / "models"
SMALL = ("eval=null", "trainer.groups_per_step=3", "rollout.samples_per_task=4", "trainer.checkpoint_every=2")


async def trained(folder: Path, *overrides: str, kill_at: int | None = None) -> RunFolder:
    """Train the example, made smaller. At step `kill_at`, one of its servers is killed."""
    settings = (f"trainer.run_dir={folder}", f"rollout.engine.executable={VLLM}", *SMALL, *overrides)
    async with open_run(load(EXAMPLE, settings), cache=CACHE, stop=asyncio.Event(), env=os.environ) as run:
        training = asyncio.create_task(run.train())
        while kill_at is not None and not training.done() and run.learner.version < kill_at:
            await asyncio.sleep(0.05)
        if kill_at is not None and not training.done():
            os.kill(_server(), signal.SIGKILL)
        assert await training
    check(folder)
    return run.folder


def check(folder: Path) -> None:
    audit = subprocess.run([sys.executable, "-m", "loopwright.cli", "audit", str(folder)], capture_output=True)
    assert audit.returncode == 0, audit.stdout.decode() + audit.stderr.decode()


def _server() -> int:
    """The first process of one of the servers."""
    for pid in pids():
        words = _command(pid)
        if b"serve" in words and str(VLLM).encode() in words:
            return pid
    pytest.fail("no server runs")


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def metric(folder: RunFolder, name: str) -> list[Any]:
    return [record[name] for record in read_jsonl(folder.metrics) if name in record]


async def test_of_two_servers_one_is_killed_and_the_run_goes_on(tmp_path: Path) -> None:
    folder = await trained(tmp_path / "run", "rollout.engine.num_engines=2", "trainer.steps=5", kill_at=2)
    lost = [event for event in read_jsonl(folder.events) if event["name"] == "engine_lost"]
    assert len(lost) == 1
    proofs = metric(folder, "engine/0/proof_max") + metric(folder, "engine/1/proof_max")
    assert len(proofs) >= 6, "both were proven, and one of them after its death too, if it came back in time"
    assert max(proofs) < 5e-4


async def test_a_server_sleeps_while_the_learner_trains(tmp_path: Path) -> None:
    turns = ("trainer.kind=colocate", "produce={}", "trainer.steps=2")
    folder = await trained(tmp_path / "run", *turns)
    assert max(metric(folder, "engine/0/proof_max")) < 5e-4
    assert max(metric(folder, "learner/mismatch_mean")) < 1e-3


async def test_a_resumed_run_uses_a_server_of_somebody_else_again(tmp_path: Path) -> None:
    """Its version 2 is another one than that of the run before, and no key of that one is read."""
    with guarded_vllm(smollm2_folder(CACHE), tmp_path, "--max-model-len", "2048") as server:
        attached = f"rollout.engine={{kind: vllm, urls: ['{server.url}']}}"
        for steps in (2, 4):
            folder = await trained(tmp_path / "run", attached, "produce.max_staleness=0", f"trainer.steps={steps}")
            assert server.guard.poll() is None, "we leave it running"
    assert len(metric(folder, "learner/mismatch_mean")) >= 2
    assert max(metric(folder, "learner/mismatch_mean")) < 1e-3
    assert max(metric(folder, "engine/0/proof_max")) < 5e-4
