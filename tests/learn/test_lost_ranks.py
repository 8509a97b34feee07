"""Ranks that die, stop or fail: the right one is named, at once or when it has been silent for too long, and none is
left when the driver has gone."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_groups import simple_groups
from ranked import PROBE, config_of, several_ranks

from loopwright.errors import (
    CheckpointError,
    LearnerError,
    LearnerLostError,
    LoopwrightError,
    ModelError,
    RemoteError,
)
from loopwright.learn.ranks.learner import RankedLearner

pytestmark = pytest.mark.real

SILENCE = 4.0


def ranks_of(parent: int) -> list[int]:
    """The processes of ranks below this one, in the order of their start."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()[1:]]
    return sorted(int(pid) for pid, above, args in rows if int(above) == parent and "learner-rank" in args)


async def steps_until_lost(learner: RankedLearner) -> LearnerLostError:
    for _ in range(500):
        try:
            await learner.step(simple_groups(count=4))
        except LearnerLostError as error:
            return error
    raise AssertionError("nothing was lost")


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_that_is_killed_is_named_at_once(llama_folder: Path, tmp_path: Path, rank: int) -> None:
    async with several_ranks(config_of(llama_folder, tmp_path, ranks=2), tmp_path) as learner:
        await learner.step(simple_groups())
        working = asyncio.create_task(steps_until_lost(learner))
        await asyncio.sleep(0.3)
        start = time.monotonic()
        os.kill(ranks_of(os.getpid())[rank], signal.SIGKILL)
        error = await asyncio.wait_for(working, 20)
        assert time.monotonic() - start < 10
        assert (error.facts["rank"], error.facts["cause"]) == (rank, "it was killed by SIGKILL")
        for call in (learner.logprobs(PROBE), learner.save(tmp_path), learner.step(simple_groups())):
            with pytest.raises(LearnerLostError):
                await call
    assert ranks_of(os.getpid()) == []


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_that_is_stopped_is_named_when_it_was_silent(
    llama_folder: Path, tmp_path: Path, rank: int
) -> None:
    loaded = config_of(llama_folder, tmp_path, ranks=2, stall_seconds=SILENCE)
    async with several_ranks(loaded, tmp_path) as learner:
        await learner.step(simple_groups())
        os.kill(ranks_of(os.getpid())[rank], signal.SIGSTOP)
        start = time.monotonic()
        error = await asyncio.wait_for(steps_until_lost(learner), 60)
        assert time.monotonic() - start + 1 >= SILENCE
        assert error.facts["rank"] == rank
        assert "it has said nothing for 4 s" in error.facts["cause"]
    assert ranks_of(os.getpid()) == [], "a stopped rank is ended too"


async def test_a_rank_that_dies_between_calls_is_found_by_the_next(llama_folder: Path, tmp_path: Path) -> None:
    async with several_ranks(config_of(llama_folder, tmp_path, ranks=2), tmp_path) as learner:
        os.kill(ranks_of(os.getpid())[1], signal.SIGKILL)
        await asyncio.sleep(0.2)
        with pytest.raises(LearnerLostError, match="rank 1 of the learner is lost: it was killed by SIGKILL"):
            await learner.logprobs(PROBE)


async def test_an_error_of_a_rank_arrives_as_it_is(llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def mine(batch):\n    return batch.logprobs / 0 * 0\n")
    loss = {"kind": "python", "path": str(tmp_path / "broken.py") + ":mine"}
    async with several_ranks(config_of(llama_folder, tmp_path, ranks=2, loss=loss), tmp_path) as learner:
        with pytest.raises(LearnerError, match="a loss that is not finite"):
            await learner.step(simple_groups(count=4))


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("sys.exit('I leave')", r"leaving\.py:mine' raised SystemExit: I leave \(leaving\.py:4, in mine\)"),
        ("raise KeyboardInterrupt", r"leaving\.py:mine' raised KeyboardInterrupt"),
        ("return Leaving.apply(batch.logprobs)", "rank [01] of the learner raised SystemExit: in the backward pass"),
    ],
)
async def test_a_loss_that_ends_its_process_is_no_loss_of_a_rank(
    llama_folder: Path, tmp_path: Path, does: str, words: str
) -> None:
    """It would end each rank that is started anew, too."""
    (tmp_path / "leaving.py").write_text(LEAVING.replace("DOES", does))
    loss = {"kind": "python", "path": str(tmp_path / "leaving.py") + ":mine"}
    async with several_ranks(config_of(llama_folder, tmp_path, ranks=2, loss=loss), tmp_path) as learner:
        with pytest.raises(LoopwrightError, match=words) as caught:
            await learner.step(simple_groups(count=4))
    assert not isinstance(caught.value, LearnerLostError)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "import os\nPOWER = float(os.environ['POWER_OF_MINE'])\ndef mine(batch): ...\n",
            r"importing .*reads\.py failed at reads\.py:2: KeyError: 'POWER_OF_MINE', in rank [01] of",
        ),
        (
            "import os\ndef mine(batch):\n    return float(os.environ['POWER_OF_MINE'])\n",
            r"reads\.py:mine' raised KeyError: 'POWER_OF_MINE' \(reads\.py:3, in mine\), in rank [01] of",
        ),
    ],
    ids=["when imported", "when called"],
)
async def test_a_loss_that_reads_a_variable_is_told_that_ranks_see_none(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    monkeypatch.setenv("POWER_OF_MINE", "2")
    (tmp_path / "reads.py").write_text(source)
    loss = {"kind": "python", "path": str(tmp_path / "reads.py") + ":mine"}
    with pytest.raises(LoopwrightError, match=words) as caught:
        async with several_ranks(config_of(llama_folder, tmp_path, ranks=2, loss=loss), tmp_path) as learner:
            await learner.step(simple_groups(count=4))
    assert "does not see your environment variables" in caught.value.message
    assert "learner.loss.args" in caught.value.remedy


LEAVING = """import sys, torch

def mine(batch):
    DOES

class Leaving(torch.autograd.Function):
    @staticmethod
    def forward(context, logprobs):
        return logprobs.clone()

    @staticmethod
    def backward(context, gradient):
        sys.exit("in the backward pass")
"""

SLOW_DISK = """
import sys, time

def mine(batch):
    return -batch.advantages * batch.logprobs

def slowed(owner, name, seconds):
    plain = getattr(owner, name)
    def slow(*args, **kwargs):
        time.sleep(seconds)
        return plain(*args, **kwargs)
    setattr(owner, name, slow)

if "learner-rank" in sys.argv:
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
    from torch.distributed.tensor import DTensor
    from loopwright.learn.ranks import reading
    slowed(DTensor, "full_tensor", {gather})
    slowed(DefaultSavePlanner, "lookup_object", 0.15)
    slowed(DefaultLoadPlanner, "resolve_tensor", 0.15)
    slowed(reading, "part_here", 0.3)
"""
"""Work on files takes longer in a rank: so much more for each tensor."""


def slow_loss(folder: Path, gather: float) -> dict[str, str]:
    """A loss whose module makes the ranks slow that import it."""
    (folder / "slow.py").write_text(SLOW_DISK.replace("{gather}", str(gather)))
    return {"kind": "python", "path": str(folder / "slow.py") + ":mine"}


async def test_ranks_that_save_load_and_export_for_long_are_not_lost(llama_folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    loaded = config_of(llama_folder, tmp_path, ranks=2, stall_seconds=SILENCE, loss=slow_loss(tmp_path, 0.3))
    async with several_ranks(loaded, tmp_path) as learner:
        await learner.step(simple_groups())
        calls = {"save": learner.save, "load": learner.load, "export": learner.export}
        for name, call in calls.items():
            start = time.monotonic()
            await call(saved if name != "export" else tmp_path / "export")
            assert time.monotonic() - start > SILENCE, name
    assert learner.version == 1


async def test_ranks_that_hang_while_they_save_are_lost(llama_folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    loaded = config_of(llama_folder, tmp_path, ranks=2, stall_seconds=SILENCE, loss=slow_loss(tmp_path, 600))
    async with several_ranks(loaded, tmp_path) as learner:
        await learner.step(simple_groups())
        with pytest.raises(LearnerLostError, match="it has done nothing for 4 s"):
            await asyncio.wait_for(learner.save(saved), 60)


async def test_what_the_disk_refuses_a_rank_is_told_and_is_no_loss(llama_folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    (saved / "random-1.safetensors").mkdir(parents=True)
    async with several_ranks(config_of(llama_folder, tmp_path, ranks=2), tmp_path) as learner:
        with pytest.raises(CheckpointError, match=r"saved could not be written: .*Is a directory") as caught:
            await learner.save(saved)
    assert "free some disk space" in caught.value.remedy


RAISING = """
import sys

def mine(batch):
    return -batch.advantages * batch.logprobs

if "learner-rank" in sys.argv:
    import torch
    from loopwright.learn.ranks.rank import RankLearner
    plain = RankLearner.logprobs

    def logprobs(self, ids, temperature):
        if torch.distributed.get_rank() == 1:
            raise ZeroDivisionError("division by zero")
        return plain(self, ids, temperature)

    RankLearner.logprobs = logprobs
"""


async def test_what_nobody_has_foreseen_is_told_and_is_no_loss(llama_folder: Path, tmp_path: Path) -> None:
    """The other rank is in a collective meanwhile, and loses its peer."""
    (tmp_path / "raising.py").write_text(RAISING)
    loss = {"kind": "python", "path": str(tmp_path / "raising.py") + ":mine"}
    async with several_ranks(config_of(llama_folder, tmp_path, ranks=2, loss=loss), tmp_path) as learner:
        with pytest.raises(
            RemoteError, match="rank 1 of the learner raised ZeroDivisionError: division by zero"
        ) as caught:
            await asyncio.wait_for(learner.logprobs(PROBE), 60)
    assert "in logprobs" in caught.value.facts["trace"]


async def test_a_model_that_ranks_cannot_load_is_named(llama_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(llama_folder, broken)
    (broken / "model.safetensors").unlink()
    loaded = config_of(llama_folder, tmp_path, ranks=2, kl={"coefficient": 0.1, "reference": str(broken)})
    with pytest.raises(ModelError, match=r"cannot load the weights of model .*broken"):
        async with several_ranks(loaded, tmp_path):
            pass


DRIVER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from made_groups import simple_groups
from ranked import config_of, several_ranks

async def main():
    model, folder = Path(sys.argv[2]), Path(sys.argv[3])
    async with several_ranks(config_of(model, folder, ranks=2), folder) as learner:
        print("ready", flush=True)
        while True:
            await learner.step(simple_groups(count=4))

asyncio.run(main())
"""


@pytest.mark.parametrize("waits", [0.0, 0.4])
def test_no_rank_outlives_a_killed_driver(llama_folder: Path, tmp_path: Path, waits: float) -> None:
    command = [sys.executable, "-c", DRIVER, str(Path(__file__).parent), str(llama_folder), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        time.sleep(waits)
        ranks = ranks_of(driver.pid)
        assert len(ranks) == 2
        driver.kill()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/stat").exists() for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in ranks)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
