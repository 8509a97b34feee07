"""A run whose learner's ranks are actors of a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopwright.runs.auditing.audit import audit
from loopwright.runs.run_folder import RunFolder
from loopwright.track.jsonl import read_jsonl

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

WriteConfig = Callable[..., Path]
MARK = "RANKS_ON_ACTORS_TEST"
DEADLINE = 300.0
ON_ACTORS: dict[str, Any] = {
    "learner": {"lr": 1e-2, "ranks": 2, "placement": "ray"},
    "rollout__engine": {"num_engines": 1},
    "model__device": "cpu",
    "eval": None,
    "cluster": {"num_cpus": 2},
}


def actors(mark: str) -> set[int]:
    return {int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_actor(path, f"{MARK}={mark}".encode())}


def _is_actor(path: Path, mark: bytes) -> bool:
    try:
        is_host = (path / "cmdline").read_bytes().startswith(b"ray::Host")
        return is_host and mark in (path / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def steps_of(folder: RunFolder) -> list[int]:
    records = read_jsonl(folder.metrics) if folder.metrics.exists() else []
    return [record["step"] for record in records if "learner/loss" in record]


def test_ranks_on_actors_train_and_the_loss_of_one_is_survived(write_config: WriteConfig, tmp_path: Path) -> None:
    file = write_config(**ON_ACTORS, trainer__steps=6)
    folder, output = RunFolder(tmp_path / "run"), tmp_path / "output.txt"
    with output.open("wb") as said:
        command = [sys.executable, "-m", "loopwright.cli", "train", str(file)]
        training = subprocess.Popen(
            command, cwd=tmp_path, stdout=said, stderr=said, env={**os.environ, MARK: str(tmp_path)}
        )
    try:
        deadline = time.monotonic() + DEADLINE
        while len(steps_of(folder)) < 3:
            assert training.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.02)
        ranks = actors(str(tmp_path))
        assert len(ranks) == 2
        os.kill(max(ranks), signal.SIGKILL)
        assert training.wait(DEADLINE) == 0, output.read_text()
    finally:
        training.kill()
        training.wait()
    assert steps_of(folder) == [1, 2, 3, 4, 5, 6]
    assert [event["ok"] for event in read_jsonl(folder.events) if event["name"] == "learner_lost"] == [True]
    audited = audit(folder.rollouts)
    assert (audited.findings, audited.lineages) == ((), 2)
    plan = [line.split() for line in (folder.actors / "plan.log").read_text().splitlines() if line.startswith("ranks")]
    assert [row[1] for row in plan] == ["2"]
    assert (folder.actors / "ranks-learner-1.log").exists()
