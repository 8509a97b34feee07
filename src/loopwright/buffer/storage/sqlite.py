"""Storage in one SQLite file: the truth for what was drawn and produced (D1).

When a method has returned, its change is committed and survives `kill -9`; after `flush` it also survives a power cut.
One thread writes, another thread reads, and the event loop does neither.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from loopwright.buffer.archive import REMEDY, Archive, Parcel
from loopwright.buffer.codec import encode_task
from loopwright.buffer.rows import newest_version, to_row
from loopwright.buffer.storage import archiving, ledger
from loopwright.buffer.storage.refusals import check_belongs, check_evaluates, check_markable
from loopwright.buffer.storage.resuming import resume_at
from loopwright.buffer.storage.schema import force_to_disk, reading, writing
from loopwright.buffer.storage.thread import SqliteThread
from loopwright.buffer.token_numbers import encode_numbers, loss_terms
from loopwright.ports import GroupRow, ResumePlan, StalePolicy
from loopwright.types import Group, GroupStatus, Rollout, Task, TrainedRollout

log = logging.getLogger("loopwright")


class SqliteStorage:
    """The storage port over the file at `path`. Use it as `async with SqliteStorage(path) as storage`, once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = SqliteThread("loopwright-storage-writer", path, writing)
        self._reader = SqliteThread("loopwright-storage-reader", path, reading)
        self._archive = Archive.beside(path)
        self._archived = 0
        self._lineage = 0
        self._open = AsyncExitStack()

    async def __aenter__(self) -> SqliteStorage:
        async with AsyncExitStack() as opening:
            # The writer starts first: it creates the tables that the reader checks.
            for thread in (self._writer, self._reader):
                opening.push_async_callback(thread.stop)
                await thread.start()
            self._lineage = await self._reader.do(ledger.count_lineages)
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    @property
    def lineage(self) -> int:
        return self._lineage

    async def draw(self, task_set: str, draw: int, task: Task, version: int) -> GroupRow:
        text = encode_task(task)
        round = await self._writer.do(lambda db: ledger.draw_group(db, task_set, draw, text, version))
        return GroupRow(task_set, draw, round, task, version, GroupStatus.PENDING)

    async def take_up(self, row: GroupRow, version: int) -> GroupRow:
        await self._writer.do(lambda db: ledger.take_up_group(db, row, version))
        return replace(row, status=GroupStatus.PENDING)

    async def put(self, row: GroupRow, rollout: Rollout) -> None:
        check_belongs(row, rollout)
        columns, newest = to_row(rollout), newest_version(rollout)
        await self._writer.do(lambda db: ledger.put_rollout(db, row, columns, newest))

    async def put_rewards(self, row: GroupRow, rollouts: Sequence[Rollout]) -> None:
        for rollout in rollouts:
            check_belongs(row, rollout)
        rows = [(rollout.key, to_row(rollout)) for rollout in rollouts]
        await self._writer.do(lambda db: ledger.put_rewards(db, row.round, rows))

    async def mark(self, rows: Sequence[tuple[str, int]], status: GroupStatus, why: str | None = None) -> None:
        check_markable(status)
        named = tuple(rows)
        await self._writer.do(lambda db: ledger.mark_groups(db, named, status, why))

    async def consume(self, groups: Sequence[Group], step: int, trained: Sequence[TrainedRollout] = ()) -> None:
        has_numbers = any(one.chains for one in trained)
        by_key = {one.key: one for one in trained}

        def consumed(group: Group) -> ledger.ConsumedGroup:
            computed = [(by_key[one.key], one) for one in group.rollouts if one.key in by_key]
            rows = [_trained_row(numbers, rollout, has_numbers) for numbers, rollout in computed]
            return ledger.ConsumedGroup(group.task_set, group.draw, group.oldest_version, rows)

        await self._writer.do(lambda db: ledger.consume_groups(db, map(consumed, groups), step))

    async def put_eval(self, step: int, task_set: str, mode: str, rollouts: Sequence[Rollout]) -> None:
        check_evaluates(task_set, rollouts)
        rows = [(rollout.key.draw, encode_task(rollout.task), to_row(rollout)) for rollout in rollouts]
        await self._writer.do(lambda db: ledger.put_evaluation(db, step, task_set, mode, rows))

    async def evaluations(self) -> frozenset[tuple[int, str, str]]:
        return await self._reader.do(ledger.stored_evaluations)

    async def resume(
        self, task_sets: Sequence[str], *, step: int, next_draws: Mapping[str, int] | None, policy: StalePolicy
    ) -> Mapping[str, ResumePlan]:
        # This needs its own Archive: an Archive caches files, and the reader's belongs to another thread.
        archive, self._archived = Archive.beside(self._path), 0
        plans = await self._writer.do(lambda db: resume_at(db, archive, task_sets, step, next_draws, policy))
        self._lineage = await self._reader.do(ledger.count_lineages) - 1
        return plans

    async def rollouts_of(self, task_set: str, draw: int) -> tuple[Rollout, ...]:
        return await self._reader.do(lambda db: ledger.current_members(db, self._archive, task_set, draw))

    async def counts(self) -> Mapping[str, Mapping[GroupStatus, int]]:
        return await self._reader.do(ledger.count_groups)

    async def flush(self) -> None:
        await self._writer.do(lambda _: force_to_disk(self._path))

    async def archive(self, step: int) -> None:
        if not Archive.is_possible():
            if not self._archived:
                log.warning("without pyarrow, the tokens of finished groups stay in the database: %s", REMEDY)
        else:
            await self._writer.do(lambda db: archiving.address_untrained(db, step))
            for parcel in await self._reader.do(lambda db: archiving.parcels_to_move(db, self._archived, step)):
                await self._move_out(parcel)
        self._archived = step

    async def _move_out(self, parcel: Parcel) -> None:
        await self._reader.do(lambda db: archiving.copy_out(db, parcel, self._archive))
        await self._writer.do(lambda db: archiving.delete_archived(db, parcel))


def _trained_row(trained: TrainedRollout, rollout: Rollout, has_numbers: bool) -> ledger.TrainedRow:
    """`has_numbers`: whether the step has numbers of single tokens."""
    return ledger.TrainedRow(
        trained.key.member,
        trained.key.attempt,
        trained.advantage,
        trained.token_weight,
        loss_terms(trained) if has_numbers else None,
        encode_numbers(trained, rollout) if trained.chains else None,
    )
