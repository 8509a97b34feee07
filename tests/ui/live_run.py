"""A training of a tiny model in a process of its own, with an engine in another one, for tests that watch it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from loopwright.testing.tiny import tiny_llama

DEADLINE = 120
TASKS = """
from loopwright import Task

def train():
    return [Task.ask(f"t{i}", f"What is {i}+{i}?", truth=2 * i) for i in range(12)]
"""
JUDGER = """
async def judge(task, episode):
    return sum(letter in "aeiou" for letter in episode.answer) / 4
"""


def write_live_run(folder: Path, *, steps: int = 100_000) -> Path:
    """The config of a run in `folder/runs/live`, which goes on until it is stopped."""
    (folder / "tasks.py").write_text(TASKS)
    (folder / "judger.py").write_text(JUDGER)
    config = {
        "model": {"path": str(tiny_llama(folder / "model", initializer_range=0.3)), "threads": 1},
        "data": {"kind": "python", "path": "tasks.py:train"},
        "agent": {"kind": "single_turn", "judger": "vowels"},
        "judgers": {"vowels": {"kind": "native", "path": "judger.py:judge"}},
        "rollout": {"samples_per_task": 4, "max_new_tokens": 16, "engine": {"threads": 1}},
        "produce": {"kind": "async"},
        "learner": {"lr": 1e-3},
        "trainer": {
            "kind": "disaggregated",
            "run_dir": str(folder / "runs" / "live"),
            "steps": steps,
            "groups_per_step": 3,
            "checkpoint_every": 2,
        },
        "track": {"console": False, "ui": True},
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


@contextmanager
def training(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`loopwright train`, which is ended with the block."""
    command = [sys.executable, "-m", "loopwright.cli", "train", str(file)]
    with (file.parent / "output.txt").open("ab") as output:
        process = subprocess.Popen(command, cwd=file.parent, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE)


def engine_of(process: subprocess.Popen[bytes]) -> int:
    """The engine's process."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (found,) = (int(one) for one in children if b"--with-parent" in Path(f"/proc/{one}/cmdline").read_bytes())
    return found


async def until(condition: Callable[[], object], process: subprocess.Popen[bytes], file: Path) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            assert process.poll() is None, (file.parent / "output.txt").read_text()[-3000:]
            await asyncio.sleep(0.05)


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
