"""What only a file can show: reopening, kills, full disks, strangers, readers beside a writer."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from stored_values import ON_POLICY, TASK, facts_of, group_of, make_failure, make_rollout

from loopwright.buffer.archive import Archive, GroupKey, Parcel
from loopwright.buffer.storage import ledger
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.buffer.storage.thread import SqliteThread
from loopwright.errors import RunError
from loopwright.ports import GroupRow
from loopwright.runs.stored_run import Evaluation, StoredRun
from loopwright.types import GroupStatus, Rollout, RolloutKey, Task


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.sqlite"


async def test_a_reopened_run_goes_on_where_it_was(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        row = await storage.draw("train", 0, TASK, 0)
        await storage.put(row, make_rollout(0, 0))
    async with SqliteStorage(path) as storage:
        plans = await storage.resume(["train"], step=0, next_draws=None, policy=ON_POLICY)
        (held,) = plans["train"].held
        assert held.row == replace(row, status=GroupStatus.ABORTED)
        await storage.put(await storage.take_up(held.row, 0), make_rollout(0, 1))
        assert len(await storage.rollouts_of("train", 0)) == 2


async def test_puts_of_one_moment_share_a_commit(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        row = await storage.draw("train", 0, TASK, 0)
        said: list[str] = []
        await storage._writer.do(lambda db: db.set_trace_callback(said.append))
        said.clear()
        # Whoever is slow to ask, as one who reads a task from a file, must not cost the others a commit.
        await asyncio.gather(*(_put(storage, row, member) for member in range(200)))
        assert said.count("COMMIT") == 1
        assert len(await storage.rollouts_of("train", 0)) == 200


async def _put(storage: SqliteStorage, row: GroupRow, member: int) -> None:
    await storage.put(row, _made_slowly(member))


def _made_slowly(member: int) -> Rollout:
    time.sleep(0.0002)
    return make_rollout(0, member)


async def test_a_refused_job_does_not_take_its_neighbours_down(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        row = await storage.draw("train", 0, TASK, 0)
        puts = [make_rollout(0, 0), make_failure(0, 0), make_rollout(0, 1)]
        outcomes = await asyncio.gather(*(storage.put(row, rollout) for rollout in puts), return_exceptions=True)
        assert outcomes[0] is None
        assert isinstance(outcomes[1], RunError)
        assert outcomes[2] is None
        assert len(await storage.rollouts_of("train", 0)) == 2


async def test_a_flush_waits_for_the_disk_with_all_that_is_committed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda file: on_disk.append(os.pread(file, 1 << 30, 0)))
    async with SqliteStorage(path) as storage:
        row = await storage.draw("train", 0, TASK, 0)
        await storage.put(row, make_rollout(0, 0))
        assert on_disk == [], "a commit alone does not wait for it"
        await storage.flush()
        log = path.with_name(f"{path.name}-wal").read_bytes()
    assert on_disk == [log]


async def test_a_flush_that_fails_says_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with SqliteStorage(path) as storage:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match="No space left") as caught:
            await storage.flush()
        assert "free some disk space" in caught.value.remedy
        await storage.draw("train", 0, TASK, 0)


async def test_a_cancelled_caller_does_not_lose_the_write(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        row = await storage.draw("train", 0, TASK, 0)
        puts = [asyncio.create_task(storage.put(row, make_rollout(0, member))) for member in range(50)]
        await asyncio.sleep(0)
        for put in puts:
            put.cancel()
        await asyncio.gather(*puts, return_exceptions=True)
        await storage.put(row, make_rollout(0, 50))
        assert len(await storage.rollouts_of("train", 0)) == 51


async def test_a_full_disk_is_reported_and_nothing_is_half_stored(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        row = await storage.draw("train", 0, TASK, 0)
        await storage.put(row, make_rollout(0, 0))
        await _limit_pages(storage, extra=20)
        puts = [storage.put(row, make_rollout(0, 1 + member, size=4000)) for member in range(4)]
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        errors = [outcome for outcome in outcomes if outcome is not None]
        assert errors
        for error in errors:
            assert isinstance(error, RunError)
            assert "full" in error.message
            assert "free some disk space" in error.remedy
        stored = {rollout.key.member for rollout in await storage.rollouts_of("train", 0)}
        assert stored == {0} | {1 + member for member, outcome in enumerate(outcomes) if outcome is None}

        await _limit_pages(storage, extra=10_000)
        missing = next(1 + member for member, outcome in enumerate(outcomes) if outcome is not None)
        await storage.put(row, make_rollout(0, missing, size=4000))
        assert missing in {rollout.key.member for rollout in await storage.rollouts_of("train", 0)}


async def _limit_pages(storage: SqliteStorage, extra: int) -> None:
    """A page limit is how SQLite lets a test fill the disk."""

    def limit(db: sqlite3.Connection) -> None:
        (used,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {used + extra}")

    await storage._writer.do(limit)


class Worn(sqlite3.Connection):
    """A connection that breaks at a word."""

    breaks_at: tuple[str, ...] = ()
    error: Exception = sqlite3.OperationalError("disk I/O error")

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement in self.breaks_at:
            raise self.error
        return super().execute(statement, *values)


@pytest.mark.parametrize(
    ("breaks_at", "error", "heard"),
    [
        (("COMMIT", "ROLLBACK"), sqlite3.OperationalError("disk I/O error"), RunError),
        (("COMMIT",), MemoryError("no room"), MemoryError),
    ],
)
async def test_nobody_waits_for_a_thread_that_is_broken(
    path: Path, breaks_at: tuple[str, ...], error: Exception, heard: type[Exception]
) -> None:
    """Those whose work broke it, those behind them and all who come later hear why."""

    @contextmanager
    def opener(file: Path) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(file, isolation_level=None, factory=Worn)) as connection:
            connection.breaks_at, connection.error = breaks_at, error
            yield connection

    thread = SqliteThread("worn", path, opener)
    await thread.start()
    async with asyncio.timeout(5):
        first = await asyncio.gather(*(thread.do(lambda db: None) for _ in range(3)), return_exceptions=True)
        later = await asyncio.gather(thread.do(lambda db: None), return_exceptions=True)
        assert {type(one) for one in [*first, *later]} == {heard}
        await thread.stop()


async def test_a_closed_storage_says_so(path: Path) -> None:
    storage = SqliteStorage(path)
    with pytest.raises(RunError, match="is not open"):
        await storage.counts()
    async with storage:
        await storage.draw("train", 0, TASK, 0)
    with pytest.raises(RunError, match="is not open"):
        await storage.draw("train", 1, TASK, 0)


@pytest.mark.parametrize(
    ("tables", "found"),
    [
        (
            "CREATE TABLE schema AS SELECT 99 AS version",
            "schema version 99, this Loopwright reads versions 2 to 4",
        ),
        ("CREATE TABLE schema AS SELECT 1 AS version", "schema version 1, this Loopwright reads versions 2 to 4"),
        ("CREATE TABLE other (x)", "no schema version"),
    ],
)
async def test_a_database_of_another_kind_is_refused(path: Path, tables: str, found: str) -> None:
    stranger = sqlite3.connect(path)
    stranger.execute(tables)
    stranger.close()
    with pytest.raises(RunError, match=found):
        async with SqliteStorage(path):
            pass
    with pytest.raises(RunError, match=found):
        StoredRun(path).steps()


def test_an_empty_file_is_no_reason_to_start_over(path: Path) -> None:
    """A run whose database was damaged may still have its checkpoints."""
    path.touch()
    with pytest.raises(RunError, match="it is empty, damaged") as caught:
        StoredRun(path).steps()
    assert "--fresh" not in caught.value.remedy


async def test_a_file_that_is_no_database_is_refused() -> None:
    path = Path(__file__)
    with pytest.raises(RunError, match="file is not a database"):
        async with SqliteStorage(path):
            pass


async def test_a_missing_folder_is_a_run_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="unable to open database file"):
        async with SqliteStorage(tmp_path / "missing" / "rollouts.sqlite"):
            pass


async def test_the_reader_sees_a_run_while_it_writes(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        run = StoredRun(path)
        assert run.steps() == ()
        for draw in (0, 1):
            row = await storage.draw("train", draw, TASK, 0)
            for member in (1, 0):
                await storage.put(row, make_failure(draw, member))
                await storage.put(row, make_rollout(draw, member, 1))
            await storage.consume([group_of(make_rollout(draw))], 1 + draw)
        await storage.draw("train", 2, TASK, 0)

        assert run.steps() == (1, 2)
        expected = [facts_of(make_rollout(1, member, 1)) for member in (0, 1)]
        assert [facts_of(rollout) for rollout in run.rollouts(2)] == expected
        assert run.rollouts(3) == ()
        first_try = run.find(RolloutKey("train", 0, 1, 0))
        assert first_try is not None
        assert facts_of(first_try) == facts_of(make_failure(0, 1))
        assert run.find(RolloutKey("train", 0, 7, 0)) is None
        assert run.counts() == await storage.counts()


async def test_rollouts_of_a_status_are_read_no_further_than_asked_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqliteStorage(path) as storage:
        for draw in range(5):
            await storage.put(await storage.draw("train", draw, TASK, 0), make_rollout(draw, 0))
            await storage.mark([("train", draw)], GroupStatus.FILTERED)
        read: list[int] = []
        members_of = ledger.members_of

        def counted(
            db: sqlite3.Connection, archive: Archive, group: GroupKey, task: Task, parcel: Parcel | None
        ) -> tuple[Rollout, ...]:
            read.append(group[1])
            return members_of(db, archive, group, task, parcel)

        monkeypatch.setattr(ledger, "members_of", counted)
        first_two = islice(StoredRun(path).rollouts_in(GroupStatus.FILTERED), 2)
        assert [rollout.key.draw for rollout in first_two] == [4, 3]
        assert read == [4, 3]


async def test_a_second_evaluation_replaces_the_first_and_resume_drops_later_ones(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        await storage.put_eval(0, "eval", "greedy", [make_rollout(draw, task_set="eval") for draw in (1, 0)])
        await storage.put_eval(5, "eval", "greedy", [make_rollout(draw, task_set="eval") for draw in (0, 1)])
        await storage.put_eval(5, "eval", "greedy", [make_rollout(2, task_set="eval")])
        await storage.put_eval(5, "eval", "sampled", [make_rollout(3, task_set="eval")])
        run = StoredRun(path)
        assert run.evaluations() == (
            Evaluation(0, "eval", "greedy"),
            Evaluation(5, "eval", "greedy"),
            Evaluation(5, "eval", "sampled"),
        )
        assert [rollout.key.draw for rollout in run.eval_rollouts(0, "eval", "greedy")] == [0, 1]
        assert [facts_of(r) for r in run.eval_rollouts(5, "eval", "greedy")] == [
            facts_of(make_rollout(2, task_set="eval"))
        ]
        await storage.resume(["train"], step=4, next_draws=None, policy=ON_POLICY)
        assert run.evaluations() == (Evaluation(0, "eval", "greedy"),)


def test_a_run_without_rollouts_is_a_run_error(path: Path) -> None:
    with pytest.raises(RunError, match="there are no rollouts at"):
        StoredRun(path).steps()


CHILD = """
    import asyncio, pathlib, sys
    from stored_values import TASK, make_rollout
    from loopwright.buffer.storage.sqlite import SqliteStorage

    async def produce(storage, row, member):
        for attempt in range(100_000):
            await storage.put(row, make_rollout(row.draw, member, attempt, size=200))
            print(f"{member} {attempt}\\n", end="", flush=True)

    async def main():
        async with SqliteStorage(pathlib.Path(sys.argv[1])) as storage:
            row = await storage.draw("train", 0, TASK, 0)
            await asyncio.gather(*(produce(storage, row, member) for member in range(8)))

    asyncio.run(main())
"""


def test_every_acknowledged_rollout_survives_kill_9(path: Path) -> None:
    """D1."""
    acknowledged = _put_until_killed(path)
    run = StoredRun(path)
    assert len(acknowledged) >= 100
    for member, attempt in acknowledged:
        stored = run.find(RolloutKey("train", 0, member, attempt))
        assert stored is not None
        assert facts_of(stored) == facts_of(make_rollout(0, member, attempt, size=200))
    assert run.counts()["train"][GroupStatus.PENDING] == 1


def _put_until_killed(path: Path) -> list[tuple[int, int]]:
    """Kill a writing child with SIGKILL; returns the (member, attempt) pairs whose `put` had returned."""
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        lines = [next(child.stdout) for _ in range(100)]
        child.kill()
        lines += child.stdout
    assert child.returncode == -signal.SIGKILL
    pairs = [line.split() for line in lines if line.endswith("\n")]
    return [(int(member), int(attempt)) for member, attempt in pairs]
