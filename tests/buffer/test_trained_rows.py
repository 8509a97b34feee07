"""What a step computed is stored with the step, moves to its file, and is undone with it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from stored_values import ON_POLICY, TASK, group_of, make_failure, make_rollout, trained_chain

from loopwright.buffer.archive import Archive
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.runs.auditing.audit import audit
from loopwright.runs.one_rollout import RolloutPage, read_rollout
from loopwright.runs.step_groups import Wanted, step_page
from loopwright.types import GroupStatus, RolloutKey, TrainedRollout


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.sqlite"


def computed(draw: int, member: int, advantage: float) -> TrainedRollout:
    """Without an advantage there is nothing to compute of the tokens."""
    chains = (trained_chain(0, [2, 3, 4], [-0.25 - member + 0.5] * 3, [0.1, -0.2, 0.1]),) if advantage else ()
    return TrainedRollout(RolloutKey("train", draw, member), advantage, 0.25, chains)


async def train(storage: SqliteStorage, draw: int, step: int, *, tokens: bool = True) -> None:
    row = await storage.draw("train", draw, TASK, step - 1)
    members = [make_rollout(draw, member, version=step - 1) for member in (0, 1)]
    for one in members:
        await storage.put(row, one)
    await storage.mark([("train", draw)], GroupStatus.COMPLETED)
    trained = [computed(draw, 0, 1.0 if tokens else 0.0), computed(draw, 1, 0.0)]
    await storage.consume([group_of(*members)], step, trained)


def page(path: Path, draw: int, member: int) -> RolloutPage:
    found = read_rollout(path, Archive.beside(path), RolloutKey("train", draw, member))
    assert found is not None
    return found


def rows(path: Path) -> list[tuple[int, int, bool]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT draw, member, numbers IS NOT NULL FROM trained ORDER BY 1, 2").fetchall()


async def test_a_step_is_stored_with_what_it_computed(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        await train(storage, 0, 1)
    first, second = page(path, 0, 0).trained, page(path, 0, 1).trained
    assert first is not None
    assert second is not None
    assert (first.advantage, first.token_weight, first.push) == (1.0, 0.25, 1.0)
    assert (second.advantage, second.push, dict(second.chains)) == (0.0, 0.0, {})
    assert first.chains[0].positions.tolist() == [2, 3, 4]
    assert first.chains[0].mismatch == pytest.approx([0.5] * 3, abs=1e-3)
    pushes = first.pushes(0)
    assert pushes is not None
    assert pushes == pytest.approx([0.25, -0.5, 0.25], abs=1e-3)
    (group,) = step_page(path, 1, Wanted()).groups
    assert [(one.advantage, one.loss_terms) for one in group.members] == [(1.0, pytest.approx(0.4)), (0.0, 0.0)]
    assert audit(path).is_clean


async def test_it_moves_to_the_file_of_its_step(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        await train(storage, 0, 1)
        before = page(path, 0, 0).trained
        await storage.archive(1)
    assert rows(path) == [(0, 0, 0), (0, 1, 0)], "the database has the numbers of rollouts, not of tokens"
    after = page(path, 0, 0).trained
    assert before is not None
    assert after is not None
    assert after.chains[0].losses.tolist() == before.chains[0].losses.tolist()
    assert audit(path).is_clean


@pytest.mark.parametrize("archived", [False, True])
async def test_a_step_that_is_undone_takes_it_along(path: Path, archived: bool) -> None:
    async with SqliteStorage(path) as storage:
        await train(storage, 0, 1)
        await train(storage, 1, 2)
        if archived:
            await storage.archive(2)
    async with SqliteStorage(path) as storage:
        await storage.resume(["train"], step=1, next_draws=None, policy=ON_POLICY)
        assert [draw for draw, _, _ in rows(path)] == [0, 0]
        assert (page(path, 1, 0).status, page(path, 1, 0).trained) == (GroupStatus.COMPLETED, None)
        await storage.consume([group_of(make_rollout(1, version=1))], 2, [computed(1, 0, 0.5)])
        again = page(path, 1, 0).trained
        assert again is not None
        assert again.advantage == 0.5
        await storage.archive(2)
    assert audit(path).is_clean


async def test_without_numbers_of_tokens_the_advantage_is_known(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        await train(storage, 0, 1, tokens=False)
        await storage.archive(1)
    trained = page(path, 0, 0).trained
    assert trained is not None
    assert (trained.loss_terms, trained.push, trained.pushes(0)) == (None, None, None)


async def test_a_group_says_why_it_was_left_out_until_it_goes_on(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        await storage.resume(["train"], step=0, next_draws=None, policy=ON_POLICY)
        row = await storage.draw("train", 0, TASK, 0)
        await storage.put(row, make_failure())
        await storage.mark([("train", 0)], GroupStatus.FAILED, "1 x agent KeyError")
        assert page(path, 0, 0).why == "1 x agent KeyError"
        (group,) = step_page(path, 1, Wanted(status=GroupStatus.FAILED)).groups
        assert group.why == "1 x agent KeyError"
        await storage.take_up(row, 0)
        assert page(path, 0, 0).why is None


async def test_an_audit_sees_what_is_damaged_gone_or_of_no_step(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        await train(storage, 0, 1)
        await train(storage, 1, 2)
        await train(storage, 2, 3)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE trained SET numbers = CAST(x'09' || numbers AS BLOB) WHERE draw = 0 AND numbers IS NOT NULL")
        db.execute("UPDATE trained SET numbers = NULL WHERE draw = 1")
        db.execute("UPDATE groups SET status = 'completed', step = NULL WHERE draw = 2")
        db.commit()
    found = {finding.where: finding.what for finding in audit(path).findings}
    assert "cannot be read" in found["train/000000/00/0"]
    assert found["train/000001/00/0"] == "the numbers of its trained tokens are gone"
    assert found["train/000002/01/0"] == "a train step computed it, and its group is completed"
