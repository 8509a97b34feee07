"""A run whose learner's ranks are actors of a cluster: one on this machine, or one of several nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from joined_cluster import DEADLINE, actors_of, joined_cluster, marked

from loopwright.runs.auditing.audit import audit
from loopwright.runs.run_folder import RunFolder
from loopwright.track.jsonl import read_jsonl

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

WriteConfig = Callable[..., Path]
ON_ACTORS: dict[str, Any] = {
    "learner": {"lr": 1e-2, "ranks": 2, "placement": "ray"},
    "rollout__engine": {"num_engines": 1},
    "model__device": "cpu",
    "eval": None,
}


def steps_of(folder: RunFolder) -> list[int]:
    records = read_jsonl(folder.metrics) if folder.metrics.exists() else []
    return [record["step"] for record in records if "learner/loss" in record]


def train_and_lose_a_rank(file: Path, folder: Path, environment: Mapping[str, str]) -> RunFolder:
    """Train for six steps, while one of the two ranks is killed after the third. Gives the run's folder."""
    run, output = RunFolder(folder / "run"), folder / "output.txt"
    with output.open("wb") as said:
        command = [sys.executable, "-m", "loopwright.cli", "train", str(file)]
        training = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env=environment)
    try:
        deadline = time.monotonic() + DEADLINE
        while len(steps_of(run)) < 3:
            assert training.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.02)
        ranks = actors_of(folder)
        assert len(ranks) == 2
        os.kill(max(ranks), signal.SIGKILL)
        assert training.wait(DEADLINE) == 0, output.read_text()
    finally:
        training.kill()
        training.wait()
    return run


def require_whole(run: RunFolder) -> list[list[str]]:
    """Every step was trained, one learner was lost, and nothing else. Gives the lines of the plan about ranks."""
    assert steps_of(run) == [1, 2, 3, 4, 5, 6]
    assert [event["ok"] for event in read_jsonl(run.events) if event["name"] == "learner_lost"] == [True]
    audited = audit(run.rollouts)
    assert (audited.findings, audited.lineages) == ((), 2)
    lines = (run.actors / "plan.log").read_text().splitlines()
    return [line.split() for line in lines if line.startswith("ranks")]


def test_ranks_on_actors_train_and_the_loss_of_one_is_survived(write_config: WriteConfig, tmp_path: Path) -> None:
    file = write_config(**ON_ACTORS, trainer__steps=6, cluster={"num_cpus": 2})
    plan = require_whole(train_and_lose_a_rank(file, tmp_path, marked(tmp_path)))
    assert [row[1] for row in plan] == ["2"]


def test_ranks_on_two_other_nodes_train_and_the_loss_of_one_is_survived(
    write_config: WriteConfig, tmp_path: Path
) -> None:
    """The driver's node has no CPU for a rank, and each of the others one: the ranks meet across nodes, and the weights
    of rank 0 travel to the driver."""
    with joined_cluster(tmp_path, 0, 1, 1) as cluster:
        file = write_config(**ON_ACTORS, trainer__steps=6, cluster={"address": cluster.address})
        plan = require_whole(train_and_lose_a_rank(file, tmp_path, cluster.environment))
    assert [row[1] for row in plan] == ["1", "1"]
