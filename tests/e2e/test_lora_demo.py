"""The demo with adapters keeps its promise: a real LLM learns to add, colocated and asynchronously. What an update
moves and what the run needs of memory is printed beside the same of a run that trains all weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.track.jsonl import read_jsonl

EXAMPLES = Path(__file__).parents[2] / "examples"
LORA = ("learner.lora={}", "learner.lr=3e-4")
TWO_STEPS = ("trainer.steps=2", "eval=null", "trainer.export=false")
MIB = 2**20


def train(folder: Path, example: str, *overrides: str) -> int:
    """Run the command of an example. Gives the peak of the driver's memory in bytes."""
    command = [sys.executable, "-m", "loopwright.cli", "train", str(EXAMPLES / example), f"trainer.run_dir={folder}"]
    process = subprocess.Popen([*command, *overrides])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_maxrss * 1024


def numbers(folder: Path, name: str) -> list[float]:
    return [record[name] for record in read_jsonl(folder / "metrics.jsonl") if name in record]


def shown(name: str, folder: Path, peak: int) -> None:
    print(f"{name}: {numbers(folder, 'sync/bytes')[-1] / MIB:,.1f} MiB per update, {peak / MIB:,.0f} MiB at most")


@pytest.mark.real
@pytest.mark.timeout(1200)
def test_an_update_of_adapters_moves_a_fraction_of_the_weights(tmp_path: Path) -> None:
    small = (*TWO_STEPS, "trainer.groups_per_step=2", "rollout.samples_per_task=4", "trainer.checkpoint_every=2")
    apart = (*small, "rollout.engine.num_engines=1")
    full, lora = tmp_path / "full", tmp_path / "lora"
    shown("all weights", full, train(full, "arithmetic.yaml", *apart))
    shown("adapters   ", lora, train(lora, "arithmetic_lora.yaml", *apart))
    assert numbers(lora, "sync/bytes")[-1] < numbers(full, "sync/bytes")[-1] / 20
    for folder in (full, lora):
        assert max(numbers(folder, "engine/0/proof_max")) < 5e-4
        # None if all groups of both steps had equal rewards.
        assert max(numbers(folder, "learner/mismatch_max"), default=0.0) < 1e-3


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("example", "full", "overrides"),
    [("arithmetic_lora.yaml", "arithmetic.yaml", ()), ("arithmetic_async.yaml", "arithmetic_async.yaml", LORA)],
    ids=["colocated", "async"],
)
def test_the_demo_learns_with_adapters(tmp_path: Path, example: str, full: str, overrides: tuple[str, ...]) -> None:
    run, beside = tmp_path / "run", tmp_path / "beside"
    shown("adapters   ", run, train(run, example, *overrides))
    shown("all weights", beside, train(beside, full, *TWO_STEPS))
    for greedy in ("greedy", "sampled"):
        before, *_, after = numbers(run, f"eval/eval/{greedy}/reward")
        print(f"{greedy}: {before:.3f} -> {after:.3f}")
        if greedy == "sampled":
            assert after >= before + 0.3
    assert max(numbers(run, "engine/0/proof_max")) < 5e-4
