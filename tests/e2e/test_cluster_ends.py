"""Runs with actors that are stopped or killed: the real command line, and what is left of its processes and files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loopwright.serve.marked_processes import ProcessTable, kill_all, read_proc
from loopwright.track.jsonl import read_jsonl

pytestmark = pytest.mark.real

WriteConfig = Callable[..., Path]
MARK = "XDG_LOOPWRIGHT_TEST"
"""A variable that children see, also those with a small environment."""
DEADLINE = 120


class Training:
    """`loopwright train`, with a folder of its own for temporary files, whose path is short enough for Ray."""

    def __init__(self, file: Path, temporary: Path) -> None:
        self.run, self.temporary = file.parent / "run", temporary
        self.output = file.parent / "output.txt"
        env = {**os.environ, "TMPDIR": str(temporary), MARK: temporary.name}
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "loopwright.cli", "train", str(file)],
                cwd=file.parent,
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + DEADLINE
        while max((record["step"] for record in read_jsonl(self.run / "metrics.jsonl")), default=0) < step:
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def processes(self, *names: str) -> list[str]:
        """The command lines of the run's living processes, or of those with one of these names."""
        marked = ProcessTable(MARK).of(self.temporary.name)
        commands = [read_proc(one.pid, "cmdline").replace(b"\0", b" ").decode() for one in marked]
        return [command for command in commands if not names or any(name in command for name in names)]

    def folders(self) -> list[Path]:
        return list(self.temporary.glob("lw-ray-*"))


@pytest.fixture
def train(write_config: WriteConfig) -> Iterator[Callable[..., Training]]:
    with tempfile.TemporaryDirectory(prefix="lw-") as temporary:

        def start() -> Training:
            return Training(
                write_config(
                    eval=None,
                    judgers__vowels__num_actors=2,
                    judgers__vowels__num_cpus_per_actor=0.25,
                    trainer__steps=500,
                    trainer__checkpoint_every=1,
                ),
                Path(temporary),
            )

        yield start
        kill_all(one.pid for one in ProcessTable(MARK).of(Path(temporary).name))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_told_to_stop_leaves_no_actor_and_no_file(train, number):
    training = train()
    training.wait_for_step(2)
    assert len(training.processes("ray::Host")) == 2
    assert len(training.folders()) == 1
    training.process.send_signal(number)
    assert training.process.wait(DEADLINE) == 0
    assert training.processes() == []
    assert list(training.temporary.iterdir()) == []
    assert not (training.run / "ray.json").exists()
    assert list((training.run / "checkpoints").iterdir())
    # Nothing of what Ray and the actors say is on the screen.
    assert training.output.read_text() == "\nStopping after a checkpoint. Once more to stop at once.\n"


def test_a_run_that_is_killed_leaves_no_actor_and_the_resumed_one_no_file(train):
    training = train()
    training.wait_for_step(2)
    (left,) = training.folders()
    training.process.kill()
    training.process.wait()
    deadline = time.monotonic() + 10
    while training.processes("ray::Host", "/raylet/raylet "):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert left.exists()
    assert (training.run / "ray.json").exists()
    done = max(record["step"] for record in read_jsonl(training.run / "metrics.jsonl"))
    resumed = train()
    resumed.wait_for_step(done + 1)
    assert not left.exists()
    assert len(resumed.folders()) == 1
    resumed.process.send_signal(signal.SIGTERM)
    assert resumed.process.wait(DEADLINE) == 0, resumed.output.read_text()
    assert resumed.folders() == []
    assert not (resumed.run / "ray.json").exists()
