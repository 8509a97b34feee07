"""The demo keeps its promise: a real LLM learns to add."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.track.jsonl import read_jsonl

EXAMPLES = Path(__file__).parents[2] / "examples"


def train(
    folder: Path, *overrides: str, example: str = "arithmetic", seconds: float = 1500
) -> tuple[dict[str, float], dict[str, float]]:
    """Run the demo's command; returns the metrics of its first and its last evaluation."""
    file = str(EXAMPLES / f"{example}.yaml")
    command = [sys.executable, "-m", "loopwright.cli", "train", file, f"trainer.run_dir={folder}", *overrides]
    subprocess.run(command, check=True, timeout=seconds)
    evaluations = [record for record in read_jsonl(folder / "metrics.jsonl") if "eval/eval/greedy/reward" in record]
    return evaluations[0], evaluations[-1]


@pytest.mark.real
@pytest.mark.timeout(900)
def test_two_steps_of_the_demo(tmp_path: Path) -> None:
    few = ["trainer.steps=2", "eval.task_sets.0.data.path=arithmetic.py:a_few_heldout_tasks", "trainer.export=false"]
    first, last = train(tmp_path / "run", *few)
    assert (first["step"], last["step"]) == (0, 2)
    assert first["eval/eval/greedy/scored"] == 16
    steps = [record for record in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "reward/mean" in record]
    assert all(0 < step["reward/mean"] < 1 for step in steps)
    assert all(step["learner/mismatch_max"] < 1e-3 for step in steps)


@pytest.mark.long
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_learns(tmp_path: Path, seed: int) -> None:
    before, after = train(tmp_path / "run", f"trainer.seed={seed}")
    assert after["eval/eval/sampled/reward"] >= before["eval/eval/sampled/reward"] + 0.4
    assert after["eval/eval/greedy/reward"] >= before["eval/eval/greedy/reward"]
    assert {before["eval/eval/greedy/scored"], after["eval/eval/sampled/scored"]} == {200}


@pytest.mark.long
@pytest.mark.timeout(3700)
def test_the_demo_learns_with_two_ranks(tmp_path: Path) -> None:
    before, after = train(tmp_path / "run", example="arithmetic_ranks", seconds=3600)
    assert after["eval/eval/sampled/reward"] >= before["eval/eval/sampled/reward"] + 0.3
    assert {before["eval/eval/greedy/scored"], after["eval/eval/sampled/scored"]} == {200}
