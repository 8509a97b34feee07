"""A checkpoint is complete or not there, whatever happens while it is written (D2)."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import CheckpointError, LearnerLostError
from loopwright.runs import checkpoint
from loopwright.runs.checkpoint import Checkpoints
from loopwright.runs.durable import flush_tree


class CrashedError(BaseException):
    """The process dies here: no handler of ours runs."""


def weights(text: str = "weights") -> Callable[[Path], Awaitable[None]]:
    async def write(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights.bin").write_text(text)

    return write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


async def test_the_latest_checkpoint_has_what_was_written(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    assert checkpoints.latest() is None
    written = await checkpoints.write(10, weights(), {"next_draw": {"train": 80}})
    assert checkpoints.latest() == written
    assert written.step == 10
    assert written.state == {"next_draw": {"train": 80}}
    assert (written.path / "model" / "weights.bin").read_text() == "weights"
    assert json.loads((written.path / "state.json").read_text())["format"] == 1


async def test_old_ones_are_pruned(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    for step in (5, 10, 999_999, 1_000_000):
        await checkpoints.write(step, weights(), {})
    assert names(folder) == ["step-1000000", "step-999999"]
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.step == 1_000_000


async def test_the_one_just_written_is_never_pruned(folder: Path) -> None:
    await Checkpoints(folder, keep=0).write(1, weights(), {})
    assert names(folder) == ["step-000001"]


async def test_a_step_keeps_the_checkpoint_it_has(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    await checkpoints.write(1, weights("first"), {"n": 1})
    again = await checkpoints.write(1, weights("second"), {"n": 1})
    assert (again.path / "model" / "weights.bin").read_text() == "first"
    assert again.state == {"n": 1}


@pytest.mark.parametrize("stage", ["writer", "flush_tree", "rename"])
async def test_a_crash_before_the_rename_leaves_the_previous_one(
    folder: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise CrashedError

    checkpoints = Checkpoints(folder, keep=1)
    await checkpoints.write(1, weights(), {})
    with monkeypatch.context() as patch:
        if stage == "flush_tree":
            patch.setattr(checkpoint, "flush_tree", crash)
        if stage == "rename":
            patch.setattr(Path, "rename", crash)
        writer: Any = crash if stage == "writer" else weights()
        with pytest.raises(CrashedError):
            await checkpoints.write(2, writer, {})
    assert len(names(folder)) == 2, "the crash left something behind"

    latest = checkpoints.latest()
    assert latest is not None
    assert latest.step == 1
    assert len(names(folder)) == 2, "a reader clears nothing away: it may be another run's work"
    checkpoints.clear_unfinished()
    assert names(folder) == ["step-000001"]
    assert (await checkpoints.write(2, weights(), {})).step == 2


async def test_a_crash_after_the_rename_keeps_the_new_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: Path) -> None:
        raise CrashedError

    checkpoints = Checkpoints(folder, keep=1)
    await checkpoints.write(1, weights(), {})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "flush", crash)
        with pytest.raises(CrashedError):
            await checkpoints.write(2, weights(), {})
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.step == 2


async def test_a_crash_while_pruning_leaves_no_half_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise CrashedError

    checkpoints = Checkpoints(folder, keep=1)
    await checkpoints.write(1, weights(), {})
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", crash)
        with pytest.raises(CrashedError):
            await checkpoints.write(2, weights(), {})
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.step == 2
    checkpoints.clear_unfinished()
    assert names(folder) == ["step-000002"]


async def test_everything_is_flushed_before_the_rename(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    flush, rename = flush_tree, Path.rename

    def flushed(path: Path) -> None:
        order.append(f"flush {sorted(p.name for p in path.rglob('*'))}")
        flush(path)

    def renamed(path: Path, target: Path) -> Path:
        order.append("rename")
        return rename(path, target)

    monkeypatch.setattr(checkpoint, "flush_tree", flushed)
    monkeypatch.setattr(Path, "rename", renamed)
    await Checkpoints(folder, keep=1).write(1, weights(), {})
    assert order == ["flush ['model', 'state.json', 'weights.bin']", "rename"]


async def test_a_full_disk_leaves_the_previous_one_and_says_so(folder: Path) -> None:
    async def full(target: Path) -> None:
        (target / "weights.bin").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoints = Checkpoints(folder, keep=1)
    await checkpoints.write(1, weights(), {})
    with pytest.raises(CheckpointError, match=r"step 2 could not be written: OSError.*No space left") as caught:
        await checkpoints.write(2, full, {})
    assert "disk space" in caught.value.remedy
    assert names(folder) == ["step-000001"]


async def test_a_learner_that_is_lost_while_it_writes_leaves_nothing_and_is_told_as_it_is(folder: Path) -> None:
    async def lost(target: Path) -> None:
        (target / "weights.bin").write_text("half")
        raise LearnerLostError.of_rank(1, "it was ended by signal 9", "")

    checkpoints = Checkpoints(folder, keep=1)
    await checkpoints.write(1, weights(), {})
    with pytest.raises(LearnerLostError):
        await checkpoints.write(2, lost, {})
    assert names(folder) == ["step-000001"]


async def test_a_state_that_is_not_json_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="not JSON serializable"):
        await Checkpoints(folder, keep=1).write(1, weights(), {"rng": object()})
    assert names(folder) == []


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (None, "No such file"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"format": 9, "step": 2, "state": {}}', "format 9"),
        ('{"format": 1, "step": 7, "state": {}}', "that of step 7"),
    ],
)
async def test_a_damaged_newest_one_is_named_with_a_way_back(folder: Path, state: str | None, why: str) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    await checkpoints.write(1, weights(), {})
    damaged = (await checkpoints.write(2, weights(), {})).path / "state.json"
    damaged.unlink() if state is None else damaged.write_text(state)
    with pytest.raises(CheckpointError, match=why) as caught:
        checkpoints.latest()
    assert "step-000002" in caught.value.message
    assert caught.value.remedy == f"to go on from step-000001, delete the folder {damaged.parent}"


async def test_without_an_older_one_the_way_back_is_the_beginning(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    ((await checkpoints.write(2, weights(), {})).path / "state.json").unlink()
    with pytest.raises(CheckpointError) as caught:
        checkpoints.latest()
    assert caught.value.remedy == "start over with --fresh"


def test_other_files_are_not_checkpoints(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "step-10").mkdir()
    assert Checkpoints(folder, keep=2).latest() is None
    assert names(folder) == ["notes.txt", "step-10"]
