"""The audit: a run is clean whatever it went through, and each kind of damage is found and named."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import rule
from stored_values import TASK, facts_of, make_failure, make_partial, make_rollout
from test_replay_walk import UNSHRUNK, Walk

from loopwright.buffer.replay import StoredBuffer
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.cli import main
from loopwright.ports import StalePolicy, Storage
from loopwright.runs.auditing.audit import Audit, Count, audit
from loopwright.runs.auditing.findings import Finding, FindingKind
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.types import GroupStatus, Stale, Unscored

POLICY = StalePolicy(Stale.RETRY, horizon=1, max_expiries=1)


@pytest.fixture(scope="module")
def sound_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was opened twice: trained, filtered, failed, expired, interrupted, rolled back and drawn again."""
    path = tmp_path_factory.mktemp("audit") / "run"
    with RunFolder.open(path, {"model": {"path": "x"}}) as folder:
        asyncio.run(_live_twice(folder.rollouts))
    return path


async def _live_twice(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        buffer, _ = await StoredBuffer.resume(storage, POLICY, ["train"])
        for draw in (0, 1):
            await _complete(buffer, draw, 0)
        await buffer.consume(await buffer.take(1, {"train": 1}), 1)
        await buffer.expire(2)
        for draw, status in ((2, GroupStatus.FILTERED), (3, GroupStatus.FAILED)):
            started = await buffer.draw("train", draw, TASK, 1)
            filtered = status is GroupStatus.FILTERED
            await buffer.put(started.row, make_rollout(draw, 0, version=1) if filtered else make_failure(draw, 0))
            await buffer.settle(started.row, status)
        await _complete(buffer, 4, 1)
        await buffer.consume(await buffer.take(2, {"train": 1}), 2)
        await _complete(buffer, 5, 2)
    async with SqliteStorage(path) as storage:
        buffer, plans = await StoredBuffer.resume(storage, POLICY, ["train"], step=1)
        assert plans["train"].redraw == (5,)
        again = await buffer.take_up("train", GroupStatus.EXPIRED, 1)
        assert again is not None
        await buffer.put(again.row, make_partial(1, 0, 1, version=1))
        await buffer.settle(again.row, GroupStatus.ABORTED)
        once_more = await buffer.take_up("train", GroupStatus.ABORTED, 1)
        assert once_more is not None
        await buffer.put(once_more.row, make_rollout(1, 0, 1, version=1, reward=Unscored()))
        await buffer.put_rewards(once_more.row, [make_rollout(1, 0, 1, version=1)])
        await buffer.settle(once_more.row, GroupStatus.COMPLETED)
        await _complete(buffer, 5, 1)
        await buffer.consume(await buffer.take(2, {"train": 2}), 2)
        await storage.archive(2)
        started = await buffer.draw("train", 6, TASK, 2)
        await buffer.put(started.row, make_partial(6, 0, version=2))


async def _complete(buffer: StoredBuffer, draw: int, version: int) -> None:
    started = await buffer.draw("train", draw, TASK, version)
    for member in range(2):
        await buffer.put(started.row, make_rollout(draw, member, version=version))
    await buffer.settle(started.row, GroupStatus.COMPLETED)


@pytest.fixture
def run(sound_run: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(sound_run, tmp_path / "run"))


def audited(run: Path) -> Audit:
    return audit(run / "rollouts.sqlite")


def damage(run: Path, *statements: str) -> None:
    with closing(sqlite3.connect(run / "rollouts.sqlite")) as db, db:
        for statement in statements:
            assert db.execute(statement).rowcount


def test_a_run_that_went_through_everything_is_clean(sound_run: Path) -> None:
    found = audited(sound_run)
    assert (found.findings, found.lineages) == ((), 2)
    table = found.task_sets["train"]
    assert {status: count for status, count in table.standing.items() if count.groups} == {
        GroupStatus.CONSUMED: Count(3, 6),
        GroupStatus.COMPLETED: Count(1, 2),
        GroupStatus.PENDING: Count(1, 1),
        GroupStatus.FILTERED: Count(1, 1),
        GroupStatus.FAILED: Count(1, 1),
        GroupStatus.ROLLED_BACK: Count(1, 2),
    }
    assert table.sampled == table.total == Count(8, 13)


LOST, DOUBLED, STALE, DAMAGED = FindingKind
DAMAGES = {
    "a group is gone": (
        ["DELETE FROM rollouts WHERE draw = 2", "DELETE FROM groups WHERE draw = 2"],
        [
            (LOST, "train/000002", "it was drawn, is filtered by its trail, and is gone"),
            (LOST, "train/000002", "it was skipped: no group has its task"),
        ],
    ),
    "a group and its trail are gone": (
        [f"DELETE FROM {table} WHERE draw = 2" for table in ("rollouts", "groups", "trail")],
        [(LOST, "train/000002", "it was skipped: no group has its task")],
    ),
    "a rollout is gone": (
        ["DELETE FROM rollouts WHERE draw = 4 AND member = 1"],
        [(LOST, "train/000004/01/0", "it was stored and is gone")],
    ),
    "a status was changed": (
        ["UPDATE groups SET status = 'filtered' WHERE draw = 5 AND round = 1"],
        [(DAMAGED, "train/000005 (round 1)", "it is filtered, but by its trail completed")],
    ),
    "a status that there is not": (
        ["UPDATE groups SET status = 'lost' WHERE draw = 5 AND round = 1"],
        [(DAMAGED, "train/000005 (round 1)", "it is lost, but by its trail completed")],
    ),
    "a group was consumed twice": (
        [
            "INSERT INTO trail SELECT NULL, task_set, draw, round, member, attempt, event, version, 3, lineage, at"
            " FROM trail WHERE draw = 0 AND event = 'consumed'",
            "UPDATE groups SET step = 3 WHERE draw = 0",
        ],
        [
            (DOUBLED, "train/000000", "it was consumed at step 3 after consumed at step 1"),
            (LOST, "step 1", "no group is known that it trained"),
            (DAMAGED, "train/000000", "the tokens of train/000000/00/0 are neither in the database nor in the archive"),
        ],
    ),
    "two rounds of a draw count": (
        [
            "UPDATE groups SET status = 'completed' WHERE draw = 5 AND round = 0",
            "DELETE FROM trail WHERE draw = 5 AND event = 'rolled_back'",
        ],
        [(DOUBLED, "train/000005", "it is completed, and was drawn again and is completed")],
    ),
    "a rollout was stored twice": (
        [
            "INSERT INTO trail SELECT NULL, task_set, draw, round, member, attempt, event, version, step, lineage, at"
            " FROM trail WHERE draw = 6 AND event = 'interrupted'",
            "UPDATE trail SET event = 'stored' WHERE draw = 6 AND event = 'interrupted'",
            "UPDATE rollouts SET stop = 'done' WHERE draw = 6",
        ],
        [(DOUBLED, "train/000006/00/0", "it was stored although it was stored already")],
    ),
    "a rollout that nobody stored": (
        ["UPDATE rollouts SET member = 7 WHERE draw = 5 AND round = 1 AND member = 1"],
        [
            (DAMAGED, "train/000005 (round 1)/07/0", "nothing says that it was stored"),
            (LOST, "train/000005 (round 1)/01/0", "it was stored and is gone"),
        ],
    ),
    "a group that nobody drew": (
        ["DELETE FROM trail WHERE draw = 6"],
        [
            (DAMAGED, "train/000006", "nothing says that it was drawn"),
            (DAMAGED, "train/000006/00/0", "nothing says that it was stored"),
        ],
    ),
    "a partial rollout counts as whole": (
        ["UPDATE rollouts SET stop = 'done' WHERE draw = 6"],
        [(DAMAGED, "train/000006/00/0", "it is whole, against its trail")],
    ),
    "an event that there is not": (
        ["UPDATE trail SET event = 'forgotten' WHERE draw = 2 AND event = 'filtered'"],
        [
            (DAMAGED, "train/000002", "its trail has an unknown event 'forgotten'"),
            (DAMAGED, "train/000002", "it is filtered, but by its trail pending"),
        ],
    ),
    "a group that may expire was trained too old": (
        [
            "UPDATE groups SET expiries = 0 WHERE draw = 0",
            "UPDATE lineages SET horizon = 0",
        ],
        [
            (STALE, "train/000000", "step 1 took tokens of version 0, against stale: retry with a horizon of 0, max"),
            (STALE, "train/000000", "step 1 trained tokens of version 0, against stale: retry with a horizon of 0, ma"),
            (STALE, "train/000001", "step 2 trained tokens of version 1, against stale: retry with a horizon of 0, ma"),
            (STALE, "train/000004", "step 2 took tokens of version 1, against stale: retry with a horizon"),
            (STALE, "train/000004", "step 2 trained tokens of version 1, against stale: retry with a horiz"),
        ],
    ),
    "wait did not wait": (
        ["UPDATE lineages SET stale = 'wait', horizon = 0"],
        [
            (STALE, name, f"step {step} {did} tokens of version {step - 1}, against stale: wait with a horizon of 0")
            for name, step in (("train/000000", 1), ("train/000001", 2), ("train/000004", 2))
            for did in ("took", "trained")
        ],
    ),
    "a step was saved and its groups were not recorded": (
        ["UPDATE lineages SET step = 3 WHERE lineage = 1"],
        [(LOST, "step 3", "no group is known that it trained: they may be trained again")],
    ),
    "the trail lies about what was trained": (
        ["UPDATE trail SET version = NULL WHERE draw = 0 AND event = 'consumed'"],
        [(DAMAGED, "train/000000", "its oldest trained token is of version 0, by its trail None")],
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_named(run: Path, name: str) -> None:
    statements, expected = DAMAGES[name]
    damage(run, *statements)
    assert [
        (found.kind, found.where, found.what[: len(what)])
        for found, (_, _, what) in zip(audited(run).findings, expected, strict=True)
    ] == expected


def test_tokens_of_the_future_are_found(run: Path) -> None:
    """Draw 5 has tokens of version 1: nothing before step 2 can have trained them."""
    damage(
        run,
        "UPDATE groups SET status = 'consumed', step = 1 WHERE draw = 5 AND round = 1",
        "INSERT INTO trail SELECT NULL, task_set, draw, round, NULL, NULL, 'consumed', 1, 1, lineage, at"
        " FROM trail WHERE draw = 5 AND round = 1 AND event = 'completed'",
    )
    what = "step 1 trained tokens of version 1, which did not exist yet"
    assert audited(run).findings == (Finding(STALE, "train/000005 (round 1)", what),)


@pytest.mark.parametrize("file", ["archive", "database"])
def test_tokens_that_cannot_be_read_are_found(run: Path, file: str) -> None:
    if file == "archive":
        (run / "archive" / "step-000001.parquet").write_bytes(b"nothing")
    else:
        damage(run, "UPDATE rollouts SET chains = x'00', messages = '[]' WHERE draw = 0")
    (found,) = audited(run).findings
    assert (found.kind, found.where) == (DAMAGED, "train/000000")
    assert "cannot be read" in found.what


def test_tokens_that_were_moved_without_having_been_trained_and_are_gone_are_found(run: Path) -> None:
    (run / "archive" / "untrained-000002.parquet").unlink()
    (found,) = audited(run).findings
    assert (found.kind, found.where) == (DAMAGED, "train/000002")
    assert "neither in the database nor in the archive" in found.what


def test_the_command_prints_the_table_and_exits_0(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(run)])
    assert not ended.value.code
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert lines[:2] == [["groups", "members"], ["train", "sampled", "8", "13"]]
    assert ["consumed", "3", "6"] in lines
    assert " ".join(lines[-1]) == "everything is there, once (opened 2 times)"


def test_the_command_lists_what_is_wrong_and_exits_1(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    damage(run, "DELETE FROM rollouts WHERE draw = 4 AND member = 1")
    for arguments in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["audit", str(run), *arguments])
        assert ended.value.code == 1
    out = capfd.readouterr().out
    assert "lost: train/000004/01/0: it was stored and is gone\n1 findings" in out
    said = json.loads(out[out.index("{") :])
    assert said["clean"] is False
    assert said["findings"] == [{"kind": "lost", "where": "train/000004/01/0", "what": "it was stored and is gone"}]
    assert said["task_sets"]["train"]["sampled"] == {"groups": 8, "members": 13}


class AuditedWalk(Walk):
    """Whatever a buffer goes through, its run stays clean. (In a walk nobody keeps the step that `wait` waits for, and
    not every step is trained.)"""

    def open_storage(self) -> Storage:
        self.folder = Path(tempfile.mkdtemp())
        storage = SqliteStorage(self.folder / "rollouts.sqlite")
        return self.runner.run(storage.__aenter__())

    @rule()
    def archive(self) -> None:
        """After a checkpoint. Nothing changes that anybody can read."""
        before = self.stored()
        self.runner.run(self.storage.archive(self.version))
        assert self.stored() == before

    def stored(self) -> list[Any]:
        return [facts_of(attempt.rollout) for attempt in StoredRun(self.folder / "rollouts.sqlite").attempts()]

    def teardown(self) -> None:
        found = audit(self.folder / "rollouts.sqlite").findings
        allowed = {STALE} if self.policy.stale is Stale.WAIT else set()
        assert [one for one in found if one.kind not in allowed and not one.where.startswith("step ")] == []
        assert isinstance(self.storage, SqliteStorage)
        self.runner.run(self.storage.__aexit__(None, None, None))
        shutil.rmtree(self.folder)
        super().teardown()


AuditedWalk.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None, phases=UNSHRUNK)
test_every_walk_leaves_a_clean_run = AuditedWalk.TestCase
