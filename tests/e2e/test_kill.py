"""Runs that die: `kill -9` and signals, with the real command line in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from loopwright.track.jsonl import read_jsonl

WriteConfig = Callable[..., Path]
DEADLINE = 120

pytestmark = pytest.mark.real


def start(file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "loopwright.cli", "train", str(file)]
    with (file.parent / "output.txt").open("ab") as output:
        return subprocess.Popen(command, cwd=file.parent, stdout=output, stderr=subprocess.STDOUT)


def wait_for_step(folder: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE
    while max((record["step"] for record in read_jsonl(folder / "metrics.jsonl")), default=0) < step:
        assert process.poll() is None, (folder.parent / "output.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def finish(process: subprocess.Popen[bytes]) -> None:
    assert process.wait(timeout=DEADLINE) == 0


def course(folder: Path) -> list[tuple[int, float, float | None]]:
    """Reward and loss of every step."""
    records = read_jsonl(folder / "metrics.jsonl")
    return [(r["step"], r["reward/mean"], r["learner/loss"]) for r in records if "reward/mean" in r]


@pytest.mark.parametrize(
    ("checkpoint_every", "number"), [(1, signal.SIGKILL), (2, signal.SIGKILL), (1000, signal.SIGINT)]
)
def test_an_interrupted_deterministic_run_ends_bit_for_bit_as_if_nothing_had_happened(
    write_config: WriteConfig, tmp_path: Path, checkpoint_every: int, number: signal.Signals
) -> None:
    settings = {"trainer__deterministic": True, "trainer__steps": 6, "trainer__checkpoint_every": checkpoint_every}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(write_config(**settings, trainer__run_dir=str(whole))))

    file = write_config(**settings, trainer__run_dir=str(killed))
    process = start(file)
    wait_for_step(killed, 3, process)
    process.send_signal(number)
    process.wait()
    assert not (killed / "export").exists(), "it was interrupted too late to prove anything"
    finish(start(file))

    assert course(killed) == course(whole)
    ours, theirs = (load_file(folder / "export" / "model.safetensors") for folder in (killed, whole))
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_a_checkpoint_and_exit_code_0(
    write_config: WriteConfig, tmp_path: Path, number: signal.Signals
) -> None:
    file = write_config(trainer__steps=500, trainer__checkpoint_every=1000)
    process = start(file)
    wait_for_step(tmp_path / "run", 2, process)
    process.send_signal(number)
    finish(process)
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert checkpoint.name == f"step-{max(step for step, _, _ in course(tmp_path / 'run')):06d}"


def test_a_second_signal_ends_it_at_once_even_while_user_code_blocks(write_config: WriteConfig, tmp_path: Path) -> None:
    """An async judger that sleeps holds the event loop, so nothing but the second signal can end the run."""
    file, judging = write_config(eval=None), tmp_path / "judging"
    (tmp_path / "judger.py").write_text(
        "import pathlib, time\n"
        "async def judge(task, episode):\n"
        f"    pathlib.Path({str(judging)!r}).touch()\n"
        "    time.sleep(100)\n"
        "    return 0.0\n"
    )
    process = start(file)
    deadline = time.monotonic() + DEADLINE
    while not judging.exists():
        assert process.poll() is None, (tmp_path / "output.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None, "the first signal asks, it does not end"
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=20) == 130
