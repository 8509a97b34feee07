"""Holds the tokens and transcripts of finished groups outside the database: one Parquet file per train step for the
groups that it consumed, and one per checkpoint for groups that were not trained.

A file is written completely, flushed to disk and renamed before the database deletes what is in it. So each payload is
in at least one of the two at any moment.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from loopwright.buffer.rows import RolloutRow
from loopwright.errors import RunError

REMEDY = "pip install 'loopwright[parquet]'"

GroupKey = tuple[str, int, int]
"""Task set, draw and round."""

FILES_KEPT = 4
"""How many of the files that were read last stay in memory. Readers go through neighbouring groups, and these alternate
between files of trained and of untrained groups."""
MOST_KEPT_BYTES = 128 << 20
"""Larger files are kept alone: one file of long rollouts may have a gigabyte."""


class ParcelKind(StrEnum):
    """What a file holds. The file's name begins with the value."""

    TRAINED = "step"
    """What a train step consumed."""
    UNTRAINED = "untrained"
    """Groups that had ended without being trained when a checkpoint was written."""


class Parcel(NamedTuple):
    """Names one file, by a train step or the step of a checkpoint."""

    kind: ParcelKind
    step: int

    @staticmethod
    def of(step: int | None, archived: int | None) -> Parcel | None:
        """The file that a group's payloads were moved to, if they were moved. The arguments are the ledger's columns of
        these names."""
        if step is not None:
            return Parcel(ParcelKind.TRAINED, step)
        return None if archived is None else Parcel(ParcelKind.UNTRAINED, archived)


class Payload(NamedTuple):
    """The part of one rollout that is moved, and the rollout's key."""

    task_set: str
    draw: int
    round: int
    member: int
    attempt: int
    messages: str
    chains: bytes
    numbers: bytes | None = None
    """Those of the trained tokens. Files of earlier versions have none."""


class Archive:
    """The files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[Parcel, Mapping[tuple[Any, ...], Payload]] = {}
        self._bytes: dict[Parcel, int] = {}

    @staticmethod
    def beside(database: Path) -> Archive:
        return Archive(database.with_name("archive"))

    @staticmethod
    def is_possible() -> bool:
        return importlib.util.find_spec("pyarrow") is not None

    def path(self, parcel: Parcel) -> Path:
        return self._folder / f"{parcel.kind}-{parcel.step:06d}.parquet"

    def write(self, parcel: Parcel, payloads: Sequence[Payload]) -> None:
        """Write the payloads. They replace those of an earlier lineage that had the same step."""
        path = self.path(parcel)
        draft = path.with_name(f".{path.name}.tmp")
        try:
            self._folder.mkdir(exist_ok=True)
            _write_table(draft, payloads)
            draft.replace(path)
            self._flush_names()
        except OSError as error:
            raise RunError(
                f"{path} cannot be written: {error}",
                remedy="free some disk space, or set buffer.archive to false; nothing is lost, and the same command "
                "goes on",
            ) from error
        self._kept.pop(parcel, None)

    def restored(self, group: GroupKey, parcel: Parcel | None, row: RolloutRow) -> RolloutRow:
        """The row with its payload, from the database or from the archive. `parcel` is the file of its group."""
        if row.stop is None or row.chains is not None:
            return row
        key = (*group, row.member, row.attempt)
        payload = self.read(parcel).get(key) if parcel is not None else None
        if payload is None:
            raise RunError(
                f"the tokens of {group[0]}/{group[1]:06d}/{row.member:02d}/{row.attempt} are neither in the database "
                "nor in the archive",
                remedy=f"restore {self.path(parcel) if parcel else 'the database'} from a copy",
            )
        return row._replace(messages=payload.messages, chains=payload.chains)

    def numbers(self, group: GroupKey, parcel: Parcel, member: int, attempt: int) -> bytes | None:
        """The numbers of the rollout's trained tokens, if its file has them."""
        payload = self.read(parcel).get((*group, member, attempt))
        return None if payload is None else payload.numbers

    def read(self, parcel: Parcel) -> Mapping[tuple[Any, ...], Payload]:
        """The payloads of one file, by group, member and attempt. Empty if there is no file."""
        payloads = self._kept.pop(parcel, None)
        if payloads is None:
            payloads = self._load(self.path(parcel))
            self._bytes[parcel] = sum(len(one.messages) + len(one.chains) for one in payloads.values())
        self._kept[parcel] = payloads
        while len(self._kept) > 1 and self._is_too_much():
            del self._kept[next(iter(self._kept))]
        return payloads

    def _is_too_much(self) -> bool:
        return len(self._kept) > FILES_KEPT or sum(self._bytes[kept] for kept in self._kept) > MOST_KEPT_BYTES

    def _load(self, path: Path) -> Mapping[tuple[Any, ...], Payload]:
        if not path.is_file():
            return {}
        if not self.is_possible():
            raise RunError(f"{path} cannot be read without the package pyarrow", remedy=REMEDY)
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            columns = pq.read_table(path).to_pydict()
        except (OSError, pa.ArrowException) as error:
            raise RunError(f"{path} cannot be read: {error}", remedy="restore it from a copy") from error
        names = [name for name in Payload._fields if name in columns]
        rows = zip(*(columns[name] for name in names), strict=True)
        if not set(Payload._fields[:7]) <= set(names):
            raise RunError(f"{path} is no file of rollouts", remedy="restore it from a copy")
        payloads = (Payload(**dict(zip(names, row, strict=True))) for row in rows)
        return {payload[:5]: payload for payload in payloads}

    def _flush_names(self) -> None:
        """Flush the folder's entries to disk, because a file is found only by its name."""
        for folder in (self._folder, self._folder.parent):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _write_table(path: Path, payloads: Sequence[Payload]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = dict(zip(Payload._fields, zip(*payloads, strict=True), strict=True))
    with path.open("wb") as file:
        pq.write_table(pa.table(columns), file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
