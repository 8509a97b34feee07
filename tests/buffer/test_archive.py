"""Trained payloads leave the database and are found again; no moment of it, and no way back, loses any."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from stored_values import ON_POLICY, TASK, facts_of, group_of, make_failure, make_rollout

from loopwright.buffer import archive
from loopwright.buffer.archive import Archive
from loopwright.buffer.reader import StoredRun
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.errors import RunError
from loopwright.types import GroupStatus, RolloutKey

SIZE = 4000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.sqlite"


async def train(storage: SqliteStorage, draw: int, step: int) -> None:
    """One group of two members, one of which needed a second attempt, trained at `step`."""
    row = await storage.draw("train", draw, TASK, step - 1)
    await storage.put(row, make_failure(draw, 0))
    for member, attempt in ((0, 1), (1, 0)):
        await storage.put(row, make_rollout(draw, member, attempt, version=step - 1, size=SIZE))
    await storage.mark([("train", draw)], GroupStatus.COMPLETED)
    await storage.consume([group_of(make_rollout(draw, 1, version=step - 1))], step)


def everything(path: Path) -> list[Any]:
    """All that a reader can see of a run."""
    run = StoredRun(path)
    return [
        [facts_of(attempt.rollout) for attempt in run.attempts()],
        [[facts_of(rollout) for rollout in run.rollouts(step)] for step in run.steps()],
        [[facts_of(one) for group in run.trained(step) for one in group.rollouts] for step in run.steps()],
        facts_of(run.find(RolloutKey("train", 0, 1, 0)) or make_failure()),
        run.counts(),
    ]


def payloads(path: Path) -> int:
    """Rollouts whose tokens are in the database."""
    with sqlite3.connect(path) as db:
        (count,) = db.execute("SELECT count(*) FROM rollouts WHERE chains IS NOT NULL").fetchone()
    db.close()
    return int(count)


async def test_trained_payloads_move_and_every_reader_still_finds_them(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        for step in (1, 2, 3):
            await train(storage, step - 1, step)
        before = everything(path)
        await storage.archive(2)
        assert payloads(path) == 2, "step 3 has no checkpoint yet"
        assert [file.name for file in sorted((path.parent / "archive").iterdir())] == [
            "step-000001.parquet",
            "step-000002.parquet",
        ]
        assert everything(path) == before
        assert [facts_of(one) for one in await storage.rollouts_of("train", 0)] == before[1][0]


async def test_the_pages_that_become_free_are_used_again(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        sizes = []
        for step in range(1, 13):
            await train(storage, step - 1, step)
            await storage.archive(step)
            with sqlite3.connect(path) as db:
                sizes.append(db.execute("PRAGMA page_count").fetchone()[0])
            db.close()
        assert sizes[-1] - sizes[3] <= 12, "the database does not grow with the payloads that pass through it"


async def test_a_resume_before_an_archived_step_brings_its_payloads_back(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        for step in (1, 2, 3):
            await train(storage, step - 1, 1 if step == 3 else step)
        await storage.archive(2)
        before = everything(path)[0]
        await storage.resume(["train"], step=1, next_draws=None, policy=ON_POLICY)
        assert [facts_of(attempt.rollout) for attempt in StoredRun(path).attempts()] == before
        # Step 2 happens again, with another group: its file is written anew.
        await train(storage, 3, 2)
        await storage.archive(2)
        assert [facts_of(attempt.rollout) for attempt in StoredRun(path).attempts()][:9] == before
        assert {key[1] for key in Archive.beside(path).read(2)} == {3}


async def test_a_lost_file_is_named(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        await train(storage, 0, 1)
        await storage.archive(1)
        (path.parent / "archive" / "step-000001.parquet").unlink()
        with pytest.raises(RunError, match=r"train/000000/00/1 are neither in the database nor in the archive"):
            StoredRun(path).rollouts(1)
        with pytest.raises(RunError, match=r"step-000001.parquet lacks the tokens of 2 rollouts"):
            await storage.resume(["train"], step=0, next_draws=None, policy=ON_POLICY)


async def test_a_damaged_file_is_named(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        await train(storage, 0, 1)
        await storage.archive(1)
    (path.parent / "archive" / "step-000001.parquet").write_bytes(b"not Parquet")
    with pytest.raises(RunError, match=r"step-000001.parquet cannot be read"):
        StoredRun(path).rollouts(1)


async def test_without_pyarrow_payloads_stay_and_it_is_said_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Archive, "is_possible", staticmethod(lambda: False))
    async with SqliteStorage(path) as storage:
        for step in (1, 2):
            await train(storage, step - 1, step)
            with caplog.at_level(logging.WARNING):
                await storage.archive(step)
    assert payloads(path) == 4
    assert [record.getMessage() for record in caplog.records] == [
        "without pyarrow, the tokens of trained groups stay in the database: pip install 'loopwright[parquet]'"
    ]


CHILD = """
    import asyncio, os, pathlib, signal, sys
    from test_archive import train
    from loopwright.buffer import archive
    from loopwright.buffer.storage import archiving
    from loopwright.buffer.storage.sqlite import SqliteStorage

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    async def main():
        async with SqliteStorage(pathlib.Path(sys.argv[1])) as storage:
            await train(storage, 0, 1)
            if sys.argv[2] == "before the file has its name":
                archive.Path.replace = die
            else:
                archiving.let_go = die
            await storage.archive(1)

    asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["before the file has its name", "before the database lets go"])
async def test_kill_9_in_the_middle_of_it_loses_nothing(path: Path, tmp_path: Path, moment: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(path), moment]
    child = await asyncio.create_subprocess_exec(*command, env=environment)
    assert await child.wait() == -signal.SIGKILL
    unharmed = tmp_path / "unharmed.sqlite"
    async with SqliteStorage(unharmed) as storage:
        await train(storage, 0, 1)
    assert everything(path) == everything(unharmed)
    async with SqliteStorage(path) as storage:
        await storage.resume(["train"], step=1, next_draws=None, policy=ON_POLICY)
        await storage.archive(1)
        assert payloads(path) == 0
    assert everything(path) == everything(unharmed)
    assert [file.name for file in (path.parent / "archive").iterdir()] == ["step-000001.parquet"]


async def test_a_write_that_fails_leaves_the_database_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SqliteStorage(path) as storage:
        await train(storage, 0, 1)
        before = everything(path)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(archive.os, "fsync", full)
            with pytest.raises(RunError, match=r"step-000001.parquet cannot be written: .* No space left"):
                await storage.archive(1)
        assert everything(path) == before
        await storage.archive(1)
        assert everything(path) == before
