"""Payloads of groups that are over leave the database and are found again; no moment of it, no way back, loses any."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_values import ON_POLICY, TASK, facts_of, group_of, make_failure, make_rollout

from loopwright.buffer.archive import Archive, Parcel, ParcelKind
from loopwright.buffer.payload_file import Payload, piece_of_each, read_piece
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.errors import RunError
from loopwright.runs.stored_run import StoredRun
from loopwright.types import Failed, FailureCause, GroupStatus, RolloutKey

SIZE = 4000
UNTRAINED = (GroupStatus.FILTERED, GroupStatus.FAILED)


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


async def give_up(storage: SqliteStorage, draw: int, status: GroupStatus, version: int = 0) -> None:
    """One group of one member that is over without having been trained."""
    row = await storage.draw("train", draw, TASK, version)
    await storage.put(row, make_rollout(draw, 0, version=version, size=SIZE))
    await storage.mark([("train", draw)], status)


def everything(path: Path) -> list[Any]:
    """All that a reader can see of a run."""
    run = StoredRun(path)
    return [
        [facts_of(attempt.rollout) for attempt in run.attempts()],
        [[facts_of(rollout) for rollout in run.rollouts(step)] for step in run.steps()],
        [[facts_of(one) for group in run.trained(step) for one in group.rollouts] for step in run.steps()],
        [[facts_of(one) for one in run.rollouts_in(status)] for status in UNTRAINED],
        facts_of(run.find(RolloutKey("train", 0, 1, 0)) or make_failure()),
        run.counts(),
    ]


def files(path: Path) -> list[str]:
    return sorted(file.name for file in (path.parent / "archive").iterdir())


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
        assert files(path) == ["step-000001.parquet", "step-000002.parquet"]
        assert everything(path) == before
        assert [facts_of(one) for one in await storage.rollouts_of("train", 0)] == before[1][0]


async def test_what_was_not_trained_moves_and_every_reader_still_finds_it(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        for draw, status in enumerate(UNTRAINED):
            await give_up(storage, draw, status)
        await train(storage, 2, 1)
        await train(storage, 3, 2)
        before = everything(path)
        await storage.archive(2)
        assert payloads(path) == 0
        assert files(path) == ["step-000001.parquet", "step-000002.parquet", "untrained-000002.parquet"]
        assert everything(path) == before


async def test_what_is_over_after_a_file_was_written_waits_for_the_next(path: Path) -> None:
    """A run that stops right after a checkpoint writes another one of the same step."""
    async with SqliteStorage(path) as storage:
        await give_up(storage, 0, GroupStatus.FILTERED)
        row = await storage.draw("train", 1, TASK, 0)
        await storage.put(row, make_rollout(1, 0, size=SIZE))
        await train(storage, 2, 1)
        await storage.archive(1)
        await storage.mark([("train", 1)], GroupStatus.FILTERED)
        before = everything(path)
        await storage.archive(1)
        assert (payloads(path), everything(path)) == (1, before)
        await train(storage, 3, 2)
        before = everything(path)
        await storage.archive(2)
        assert (payloads(path), everything(path)) == (0, before)
        assert files(path)[2:] == ["untrained-000001.parquet", "untrained-000002.parquet"]


async def test_a_group_whose_judge_may_be_asked_again_stays(path: Path) -> None:
    no_judge = Failed(FailureCause.JUDGE, "TimeoutError", "")
    async with SqliteStorage(path) as storage:
        for draw in (0, 2):
            row = await storage.draw("train", draw, TASK, 0)
            await storage.put(row, make_rollout(draw, 0, reward=no_judge))
            await storage.mark([("train", draw)], GroupStatus.FAILED)
            if draw == 0:
                await train(storage, 1, 1)
        await storage.archive(1)
        assert payloads(path) == 1, "only the first was drawn before the last one that was trained"
        plans = await storage.resume(["train"], step=1, next_draws=None, policy=ON_POLICY)
        assert [held.row.draw for held in plans["train"].held] == [2]


async def test_neighbours_are_read_from_a_file_that_is_open_already(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def noted(file: Path, piece: int) -> Any:
        loaded.append(file.name)
        return read_piece(file, piece)

    monkeypatch.setattr("loopwright.buffer.archive.read_piece", noted)
    async with SqliteStorage(path) as storage:
        for step in range(1, 7):
            await give_up(storage, 2 * step, GroupStatus.FILTERED)
            await train(storage, 2 * step + 1, step)
        await storage.archive(6)
    assert len(list(StoredRun(path).attempts())) == 6 * 4
    assert sorted(loaded) == files(path)


async def test_the_pages_that_become_free_are_used_again(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        sizes = []
        for step in range(1, 13):
            await give_up(storage, 2 * step, GroupStatus.FILTERED, step - 1)
            await train(storage, 2 * step + 1, step)
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
        assert {key[1] for key in Archive.beside(path).read(Parcel(ParcelKind.TRAINED, 2))} == {3}


async def test_a_resume_before_a_checkpoint_brings_back_what_was_not_trained(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        await give_up(storage, 0, GroupStatus.FILTERED, 0)
        await give_up(storage, 1, GroupStatus.FILTERED, 2)
        await train(storage, 2, 1)
        await train(storage, 3, 2)
        before = everything(path)[0]
        await storage.archive(2)
        await storage.resume(["train"], step=1, next_draws=None, policy=ON_POLICY)
        assert payloads(path) == 4, "that of step 1 alone stays where it is"
        assert (await storage.counts())["train"][GroupStatus.ROLLED_BACK] == 1
        # The same checkpoint in another life: its file has what is over now, and what was rolled back is over.
        await give_up(storage, 1, GroupStatus.FAILED, 1)
        await storage.consume([group_of(make_rollout(3, 1, version=1))], 2)
        await storage.archive(2)
        assert payloads(path) == 0
        untrained = Archive.beside(path).read(Parcel(ParcelKind.UNTRAINED, 2))
        assert sorted(key[1:3] for key in untrained) == [(0, 0), (1, 0), (1, 1)]
        again = [facts_of(attempt.rollout) for attempt in StoredRun(path).attempts() if attempt.round == 0]
        assert again == before


async def test_a_lost_file_is_named(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        await train(storage, 0, 1)
        await storage.archive(1)
        (path.parent / "archive" / "step-000001.parquet").unlink()
        with pytest.raises(RunError, match=r"train/000000/00/1 are neither in the database nor in the archive"):
            StoredRun(path).rollouts(1)
        with pytest.raises(RunError, match=r"step-000001.parquet lacks the tokens of 2 rollouts that"):
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
        "without pyarrow, the tokens of finished groups stay in the database: pip install 'loopwright[parquet]'"
    ]


CHILD = """
    import asyncio, os, pathlib, signal, sys
    from test_archive import live
    from loopwright.buffer import archive
    from loopwright.buffer.storage import archiving
    from loopwright.buffer.storage.sqlite import SqliteStorage

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    async def main():
        async with SqliteStorage(pathlib.Path(sys.argv[1])) as storage:
            await live(storage)
            real = archiving.delete_archived
            match sys.argv[2]:
                case "before a file has its name":
                    archive.Path.replace = die
                case "before the database lets go":
                    archiving.delete_archived = die
                case "between two files":
                    archiving.delete_archived = lambda db, parcel: real(db, parcel) if parcel.kind == "step" else die()
            await storage.archive(1)

    asyncio.run(main())
"""


async def live(storage: SqliteStorage) -> None:
    await give_up(storage, 0, GroupStatus.FILTERED)
    await train(storage, 1, 1)


@pytest.mark.real
@pytest.mark.parametrize("moment", ["before a file has its name", "before the database lets go", "between two files"])
async def test_kill_9_in_the_middle_of_it_loses_nothing(path: Path, tmp_path: Path, moment: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(path), moment]
    child = await asyncio.create_subprocess_exec(*command, env=environment)
    assert await child.wait() == -signal.SIGKILL
    unharmed = tmp_path / "unharmed.sqlite"
    async with SqliteStorage(unharmed) as storage:
        await live(storage)
    assert everything(path) == everything(unharmed)
    async with SqliteStorage(path) as storage:
        await storage.resume(["train"], step=1, next_draws=None, policy=ON_POLICY)
        await storage.archive(1)
        assert payloads(path) == 0
    assert everything(path) == everything(unharmed)
    assert files(path) == ["step-000001.parquet", "untrained-000001.parquet"]


async def test_a_write_that_fails_leaves_the_database_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SqliteStorage(path) as storage:
        await train(storage, 0, 1)
        before = everything(path)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(RunError, match=r"step-000001.parquet cannot be written: .* No space left"):
                await storage.archive(1)
        assert everything(path) == before
        await storage.archive(1)
        assert everything(path) == before


async def test_of_large_files_only_the_piece_read_last_stays_in_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqliteStorage(path) as storage:
        for step in (1, 2, 3):
            await train(storage, step, step)
        await storage.archive(3)
    archive = Archive.beside(path)
    parcels = [Parcel(ParcelKind.TRAINED, step) for step in (1, 2, 3)]
    for parcel in parcels:
        assert list(archive.read(parcel))
    assert list(archive._kept) == [(parcel, 0) for parcel in parcels]
    monkeypatch.setattr("loopwright.buffer.archive.MOST_KEPT_BYTES", 1000)
    assert list(archive.read(parcels[0]))
    assert list(archive._kept) == [(parcels[0], 0)]


def payloads_of(*sizes: int) -> list[Payload]:
    return [Payload("train", 7, 0, member, 0, "[]", bytes([member]) * size) for member, size in enumerate(sizes)]


def test_one_rollout_is_read_without_the_others_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.buffer.payload_file.PIECE_BYTES", 1000)
    archive, parcel, made = Archive(tmp_path), Parcel(ParcelKind.TRAINED, 1), payloads_of(300, 400, 5000, 900, 10)
    archive.write(parcel, made)
    assert piece_of_each(archive.path(parcel)) == dict(zip((one.key for one in made), (0, 0, 1, 2, 2), strict=True))
    assert archive.payload(parcel, made[3].key) == made[3]
    assert list(archive._kept) == [(parcel, 2)], "neither the long one nor those before it"
    assert list(Archive(tmp_path).read(parcel)) == made
    assert archive.payload(parcel, ("train", 8, 0, 0, 0)) is None


def test_a_file_of_an_earlier_version_is_one_piece(tmp_path: Path) -> None:
    made = payloads_of(300, 5000)
    columns = {name: [getattr(one, name) for one in made] for name in Payload._fields if name != "numbers"}
    archive, parcel = Archive(tmp_path), Parcel(ParcelKind.TRAINED, 1)
    pq.write_table(pa.table(columns), archive.path(parcel))
    assert [archive.payload(parcel, one.key) for one in made] == made
    assert list(archive.read(parcel)) == made


def test_a_file_that_was_replaced_gives_what_it_has_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.buffer.payload_file.PIECE_BYTES", 1)
    archive, parcel, made = Archive(tmp_path), Parcel(ParcelKind.TRAINED, 1), payloads_of(5, 5, 5)
    archive.write(parcel, made)
    assert archive.payload(parcel, made[0].key) == made[0]
    Archive(tmp_path).write(parcel, made[::-1])
    assert archive.payload(parcel, made[2].key) == made[2], "it is in another piece"
    Archive(tmp_path).write(parcel, made[:1])
    assert archive.payload(parcel, made[1].key) is None


def test_pandas_is_not_imported_to_read_a_rollout(tmp_path: Path) -> None:
    """It takes a second to import, and the first trajectory that somebody opens would wait for it."""
    parcel, made = Parcel(ParcelKind.TRAINED, 1), payloads_of(5)
    Archive(tmp_path).write(parcel, made)
    program = (
        "import sys; from pathlib import Path; from loopwright.buffer.archive import Archive, Parcel, ParcelKind\n"
        f"found = Archive(Path({str(tmp_path)!r})).payload(Parcel(ParcelKind.TRAINED, 1), {made[0].key!r})\n"
        "print(found.messages, 'pandas' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["[]", "False"]
