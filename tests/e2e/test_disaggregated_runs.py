"""Whole disaggregated runs, with the engine in a process of its own, and what may befall them."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import loopwright
from loopwright.build import open_run
from loopwright.config import load
from loopwright.errors import RunLockedError, WeightsError
from loopwright.models.weight_files import WeightFileWriter
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.track.jsonl import read_jsonl
from loopwright.types import GroupStatus, WeightFile

WriteConfig = Callable[..., Path]
DEADLINE = 120
APART: dict[str, Any] = {
    "produce": {"kind": "async"},
    "rollout__engine": {"threads": 1},
    "trainer__kind": "disaggregated",
}

pytestmark = pytest.mark.real


async def run(file: Path, stop: asyncio.Event | None = None) -> RunFolder:
    stop = stop or asyncio.Event()
    async with open_run(load(file), cache=file.parent, stop=stop, env=os.environ) as opened:
        await opened.train()
        return opened.folder


def metrics(folder: RunFolder, name: str) -> dict[int, float]:
    return {record["step"]: record[name] for record in read_jsonl(folder.metrics) if name in record}


def events(folder: RunFolder, name: str) -> list[dict[str, Any]]:
    return [event for event in read_jsonl(folder.events) if event["name"] == name]


def check_ledger(folder: RunFolder, *, steps: int, staleness: int) -> None:
    """Every step trained its groups once, no token was too old, and `loopwright audit` agrees."""
    stored = StoredRun(folder.rollouts)
    assert list(stored.steps()) == list(range(1, steps + 1))
    trained = [(r.key.task_set, r.key.draw) for step in stored.steps() for r in stored.rollouts(step)]
    assert len(trained) == steps * 12
    assert {trained.count(group) for group in trained} == {4}, "a group is trained once"
    assert max(metrics(folder, "staleness/max").values(), default=0) <= staleness
    audit = subprocess.run([sys.executable, "-m", "loopwright.cli", "audit", str(folder.path)], capture_output=True)
    assert audit.returncode == 0, audit.stdout.decode() + audit.stderr.decode()


def command(file: Path, **options: Any) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "loopwright.cli", "train", str(file)]
    return subprocess.Popen(words, cwd=file.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


def engines_of(pid: int) -> list[int]:
    """The engine processes that `pid` has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"engine" in Path(f"/proc/{child}/cmdline").read_bytes()]


async def until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(DEADLINE):
        while not (found := condition()):
            await asyncio.sleep(0.01)
    return found


@pytest.mark.parametrize(
    ("produce", "trainer"),
    [
        ({"in_flight": "abort"}, {}),
        ({"in_flight": "keep", "stale": "wait"}, {"sync_interval": 2}),
        ({"in_flight": "drain", "stale": "retry", "max_staleness": 0}, {}),
    ],
    ids=["abort", "keep", "drain"],
)
async def test_a_disaggregated_run_leaves_what_every_run_leaves(
    write_config: WriteConfig, produce: dict[str, Any], trainer: dict[str, Any]
) -> None:
    settings = {**APART, "produce": {"kind": "async", **produce}, "trainer__steps": 4, "trainer__checkpoint_every": 2}
    folder = await run(write_config(**settings, **{f"trainer__{name}": value for name, value in trainer.items()}))

    stale = produce.get("max_staleness", 1)
    check_ledger(folder, steps=4, staleness=(stale + 1) * trainer.get("sync_interval", 1) - 1)
    assert set(metrics(folder, "eval/eval/greedy/reward")) == {0, 4}
    for name in ("time/wait", "time/train", "time/sync", "time/idle_share", "staleness/masked", "engine/restarts"):
        assert set(metrics(folder, name)) == {1, 2, 3, 4}
    assert {path.name for path in folder.checkpoints.iterdir()} == {"step-000002", "step-000004"}
    assert len(events(folder, "sync")) >= 4 // trainer.get("sync_interval", 1)
    assert folder.export.is_dir()
    assert engines_of(os.getpid()) == [], "the engine ends with the run"


async def test_a_killed_engine_is_survived_and_told(write_config: WriteConfig) -> None:
    file = write_config(**APART, trainer__steps=6, rollout__max_new_tokens=40)
    async with open_run(load(file), cache=file.parent, stop=asyncio.Event(), env=os.environ) as opened:
        training = asyncio.create_task(opened.train())
        await until(lambda: opened.learner.version >= 2)
        (engine,) = engines_of(os.getpid())
        os.kill(engine, signal.SIGKILL)
        assert await training
    folder = opened.folder
    check_ledger(folder, steps=6, staleness=1)
    assert sum(metrics(folder, "engine/restarts").values()) == 1
    (lost,) = events(folder, "engine_lost")
    assert "SIGKILL" in lost["facts"]["last_words"]


async def test_a_deleted_weights_file_is_a_clear_error_and_nothing_is_lost(
    write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = WeightFileWriter.finish

    def finish_and_lose(self: WeightFileWriter) -> WeightFile:
        manifest = finish(self)
        if "weights-2" in manifest.path:
            os.unlink(manifest.path)
        return manifest

    file = write_config(**APART, trainer__steps=4, trainer__checkpoint_every=4)
    monkeypatch.setattr(WeightFileWriter, "finish", finish_and_lose)
    with pytest.raises(WeightsError, match="weights-2"):
        await run(file)
    monkeypatch.undo()
    folder = RunFolder(file.parent / "run")
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-000002"]

    check_ledger(await run(file), steps=4, staleness=1)


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.9, "weights-0"), (1.5, "the checkpoint of step 2 could not be written|rollouts.sqlite")],
    ids=["memory", "disk"],
)
async def test_a_full_disk_is_a_clear_error_and_nothing_is_lost(
    write_config: WriteConfig, tiny_model: Path, share: float, words: str
) -> None:
    """No file may grow beyond a share of the model's size: weights fit or not, an optimiser's state does not, and the
    database sooner or later neither. A database without rows has half the size of the tiny model."""
    limit = int(share * (tiny_model / "model.safetensors").stat().st_size)
    file = write_config(**APART, trainer__steps=3, trainer__checkpoint_every=2)
    full = command(file, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    output, _ = await asyncio.to_thread(full.communicate, timeout=DEADLINE)
    assert full.returncode == 1, output.decode()
    assert re.search(words, output.decode()), output.decode()
    assert "Traceback" not in output.decode()

    check_ledger(await run(file), steps=3, staleness=1)


def mount(*words: str) -> bool:
    return subprocess.run(["mount", *words], capture_output=True).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None or not mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)):
        pytest.skip("needs the right to mount a file system")
    yield folder
    # What a run has mapped of its files goes with it, and a run is full of cycles.
    gc.collect()
    subprocess.run(["umount", str(folder)], check=True)


WHO_MEETS_IT_FIRST = r"database or disk is full|(could not|cannot) be written"
"""That depends on what is stored by then, and so on how fast everybody is."""


@pytest.mark.parametrize("free", [400_000, 1_000_000])
async def test_a_disk_that_is_really_full_loses_nothing_and_the_run_goes_on_when_there_is_room(
    write_config: WriteConfig, small_disk: Path, free: int
) -> None:
    (small_disk / "ballast").write_bytes(bytes(8 * 2**20 - free))
    file = write_config(**APART, trainer__run_dir=str(small_disk / "run"), trainer__steps=4)
    full = command(file)
    output, _ = await asyncio.to_thread(full.communicate, timeout=DEADLINE)
    assert full.returncode == 1, output.decode()
    assert re.search(WHO_MEETS_IT_FIRST, output.decode()), output.decode()
    assert "free some disk space" in output.decode()
    assert "Traceback" not in output.decode(), output.decode()
    stored = StoredRun(small_disk / "run" / "rollouts.sqlite")
    kept = {attempt.rollout.key for attempt in stored.attempts() if attempt.rollout.score is not None}

    assert mount("-o", "remount,size=64m", str(small_disk))
    check_ledger(await run(file), steps=4, staleness=1)
    assert kept
    assert kept <= {attempt.rollout.key for attempt in stored.attempts()}


async def test_a_second_run_on_the_same_folder_is_refused_and_the_first_goes_on(write_config: WriteConfig) -> None:
    file = write_config(**APART, trainer__steps=4)
    async with open_run(load(file), cache=file.parent, stop=asyncio.Event(), env=os.environ) as opened:
        training = asyncio.create_task(opened.train())
        await until(lambda: opened.learner.version >= 1)
        with pytest.raises(RunLockedError, match=str(os.getpid())):
            await run(file)
        assert await training
    check_ledger(opened.folder, steps=4, staleness=1)


async def test_a_signal_ends_it_in_order_and_the_same_command_goes_on(write_config: WriteConfig) -> None:
    file = write_config(**APART, trainer__steps=2000, trainer__checkpoint_every=1000)
    folder = RunFolder(file.parent / "run")
    process = command(file)
    await until(lambda: max(metrics(folder, "reward/mean"), default=0) >= 2 or process.poll() is not None)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, _ = await asyncio.to_thread(process.communicate, timeout=DEADLINE)
    assert process.returncode == 0, output.decode()
    assert time.monotonic() - started < 30
    (saved,) = folder.checkpoints.iterdir()
    step = int(saved.name.removeprefix("step-"))
    assert step == max(metrics(folder, "reward/mean"))
    assert GroupStatus.PENDING not in {s for s, n in StoredRun(folder.rollouts).counts()["train"].items() if n}

    # More steps than before may be asked for, not fewer: the run goes on under the same config, and is stopped again.
    stop = asyncio.Event()
    async with open_run(load(file), cache=file.parent, stop=stop, env=os.environ) as opened:
        training = asyncio.create_task(opened.train())
        await until(lambda: opened.learner.version >= step + 2)
        stop.set()
        assert not await training
    check_ledger(folder, steps=opened.learner.version, staleness=1)


@pytest.mark.parametrize("in_flight", ["abort", "keep", "drain"])
async def test_a_program_trains_it_step_by_step_and_looks_at_it_in_between(
    write_config: WriteConfig, in_flight: str
) -> None:
    produce = {"kind": "async", "in_flight": in_flight}
    file = write_config(**{**APART, "produce": produce, "trainer__sync_interval": 2, "trainer__steps": 4})
    seen = []
    async with loopwright.open_run(file, {"eval.every": 4}) as opened:
        seen.append(await opened.roll_out(groups=2))
        step = await opened.step()
        assert step is not None
        assert step.number == 1
        assert "eval/eval/greedy/reward" in await opened.evaluate()
        seen.append(await opened.roll_out(groups=2))
    async with loopwright.open_run(file, {"eval.every": 4}) as opened:
        assert opened.version == 1
        assert await opened.train()
        seen.append(await opened.roll_out(groups=2))
    assert [{one.oldest_version for one in sampled} for sampled in seen] == [{0}, {1}, {4}]
    assert set(metrics(opened.folder, "eval/eval/greedy/reward")) == {0, 1, 4}
    check_ledger(opened.folder, steps=4, staleness=3)


async def test_of_two_engines_one_may_die(write_config: WriteConfig) -> None:
    settings = {**APART, "rollout__engine": {"threads": 1, "num_engines": 2}}
    file = write_config(**settings, trainer__steps=5, rollout__max_new_tokens=40)
    async with open_run(load(file), cache=file.parent, stop=asyncio.Event(), env=os.environ) as opened:
        training = asyncio.create_task(opened.train())
        await until(lambda: opened.learner.version >= 2)
        one, _ = engines_of(os.getpid())
        os.kill(one, signal.SIGKILL)
        assert await training
    check_ledger(opened.folder, steps=5, staleness=1)
    assert len(events(opened.folder, "engine_lost")) == 1
    assert max(metrics(opened.folder, "engine/1/proof_max").values()) < 5e-4
    assert engines_of(os.getpid()) == []


async def test_an_engine_in_its_own_process_can_take_turns_with_the_learner(write_config: WriteConfig) -> None:
    """Also after a resume, when it starts with other weights than the learner has."""
    settings = {"rollout__engine": {"threads": 1, "num_engines": 1}}
    file = write_config(**settings, trainer__steps=2)
    await run(file)
    folder = await run(write_config(**settings, trainer__steps=4))
    check_ledger(folder, steps=4, staleness=0)
    assert set(metrics(folder, "engine/0/proof_max")) == {1, 2, 3, 4}
    assert max(metrics(folder, "learner/mismatch_max").values()) < 1e-3
