"""A run folder of an earlier version is read as it is, and is brought up to date when its run goes on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from stored_values import ON_POLICY, TASK
from test_archive import everything, files, give_up, payloads, train

from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.buffer.storage.upgrading import ADDED, ADDED_TABLES, VERSION
from loopwright.runs.auditing.audit import audit
from loopwright.types import GroupStatus


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """As version 2 left it: what was trained at step 1 is archived, what was filtered is in the database."""
    path = tmp_path / "rollouts.sqlite"
    async with SqliteStorage(path) as storage:
        await storage.resume(["train"], step=0, next_draws=None, policy=ON_POLICY)
        await train(storage, 0, 1)
        await storage.archive(1)
        await give_up(storage, 1, GroupStatus.FILTERED)
        await train(storage, 2, 2)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP INDEX groups_by_archive")
        for column in ADDED:
            db.execute(f"ALTER TABLE {column.table} DROP COLUMN {column.name}")
        for table in ADDED_TABLES:
            db.execute(f"DROP TABLE {table.name}")
        db.execute("UPDATE schema SET version = 2")
        db.commit()
    return path


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT version FROM schema").fetchone()[0])


async def test_it_is_read_and_left_as_it_is(path: Path) -> None:
    assert len(everything(path)[0]) == 7
    assert audit(path).is_clean
    assert version(path) == 2


async def test_its_run_goes_on_and_archives_what_was_left(path: Path) -> None:
    before = everything(path)
    async with SqliteStorage(path) as storage:
        assert version(path) == VERSION
        await storage.resume(["train"], step=2, next_draws=None, policy=ON_POLICY)
        await storage.archive(2)
        assert (payloads(path), everything(path)) == (0, before)
        assert files(path) == ["step-000001.parquet", "step-000002.parquet", "untrained-000002.parquet"]
        await storage.draw("train", 3, TASK, 2)
    assert audit(path).is_clean
