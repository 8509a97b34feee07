"""Whole runs whose judgers are on actors, through `loopwright train`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopwright.runs.stored_run import StoredRun
from loopwright.track.jsonl import read_jsonl
from loopwright.types import Scored

WriteConfig = Callable[..., Path]

JUDGERS = """
import os
from letters import VOWELS

async def judge(task, episode):
    return sum(letter in VOWELS for letter in episode.answer) / 4

def judge_group(task, episodes):
    lengths = [len(episode.answer) for episode in episodes]
    return [sum(length > other for other in lengths) / len(lengths) for length in lengths]

print("imported", flush=True)
open(os.path.join(os.path.dirname(__file__), f"imported-{os.getpid()}"), "w").close()
"""
"""It leaves a file for every process that imports it."""

ON_ACTORS = {"timeout_seconds": 60, "num_actors": 2, "num_cpus_per_actor": 0.25}


def train(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loopwright.cli", "train", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def write_judgers(file: Path) -> None:
    (file.parent / "judgers.py").write_text(JUDGERS)
    (file.parent / "letters.py").write_text('VOWELS = "aeiou"\n')


@pytest.mark.real
def test_a_judger_on_actors_is_opened_once_for_training_and_evaluation(write_config: WriteConfig) -> None:
    judgers: dict[str, Any] = {"vowels": {"kind": "native", "path": "judgers.py:judge", **ON_ACTORS}}
    file = write_config(judgers=judgers, trainer__steps=2)
    write_judgers(file)
    ended = train(file)
    assert ended.returncode == 0, ended.stderr
    assert len(list(file.parent.glob("imported-*"))) == 2, "one for each actor, and none in the driver"
    run = file.parent / "run"
    for number in (0, 1):
        assert "imported" in (run / "actors" / f"judgers-vowels-{number}.log").read_text()
    for attempt in StoredRun(run / "rollouts.sqlite").attempts():
        assert attempt.rollout.episode is not None
        letters = sum(letter in "aeiou" for letter in attempt.rollout.episode.answer)
        assert attempt.rollout.reward == Scored(letters / 4)
    assert any("eval/eval/greedy/reward" in record for record in read_jsonl(run / "metrics.jsonl"))


@pytest.mark.real
def test_a_composed_judger_here_has_a_part_on_actors_under_its_own_name(write_config: WriteConfig) -> None:
    judgers: dict[str, Any] = {
        "vowels": {"kind": "composed", "parts": {"sound": {"judger": "letters"}}},
        "letters": {"kind": "native", "path": "judgers.py:judge", **ON_ACTORS},
    }
    file = write_config(judgers=judgers, trainer__steps=1, eval=None)
    write_judgers(file)
    ended = train(file)
    assert ended.returncode == 0, ended.stderr
    [record] = [record for record in read_jsonl(file.parent / "run" / "metrics.jsonl") if "reward/mean" in record]
    assert record["reward/parts/sound"] == record["reward/mean"]
    assert len(list(file.parent.glob("imported-*"))) == 2
