"""Tokens and transcripts of trained groups, out of the database: one Parquet file per train step.

A file is written whole, forced to disk and given its name before the database lets go of what is in it, so at every
moment each payload is in at least one of the two.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loopwright.buffer.rows import RolloutRow
from loopwright.errors import RunError

REMEDY = "pip install 'loopwright[parquet]'"

GroupKey = tuple[str, int, int]
"""Task set, draw and round."""


class Payload(NamedTuple):
    """What is moved of one rollout, and whose it is."""

    task_set: str
    draw: int
    round: int
    member: int
    attempt: int
    messages: str
    chains: bytes


class Archive:
    """The files in `folder`. The one that was read last is kept, because its neighbours are asked for next."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: tuple[int, Mapping[tuple[Any, ...], Payload]] | None = None

    @staticmethod
    def beside(database: Path) -> Archive:
        return Archive(database.with_name("archive"))

    @staticmethod
    def is_possible() -> bool:
        return importlib.util.find_spec("pyarrow") is not None

    def path(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}.parquet"

    def write(self, step: int, payloads: Sequence[Payload]) -> None:
        """Keep the payloads of train step `step`, instead of those of an earlier life of that step."""
        path = self.path(step)
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
        self._last = None

    def restored(self, group: GroupKey, step: int | None, row: RolloutRow) -> RolloutRow:
        """The row with its payload, wherever that is; `step` is the train step that consumed the group."""
        if row.stop is None or row.chains is not None:
            return row
        key = (*group, row.member, row.attempt)
        payload = self.read(step).get(key) if step is not None else None
        if payload is None:
            raise RunError(
                f"the tokens of {group[0]}/{group[1]:06d}/{row.member:02d}/{row.attempt} are neither in the database "
                "nor in the archive",
                remedy=f"restore {self.path(step or 0)} from a copy",
            )
        return row._replace(messages=payload.messages, chains=payload.chains)

    def read(self, step: int) -> Mapping[tuple[Any, ...], Payload]:
        """The payloads of train step `step`, by group, member and attempt; none without a file."""
        if self._last is None or self._last[0] != step:
            self._last = (step, self._load(self.path(step)))
        return self._last[1]

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
        payloads = (Payload(*values) for values in zip(*(columns[name] for name in Payload._fields), strict=True))
        return {payload[:5]: payload for payload in payloads}

    def _flush_names(self) -> None:
        """Force the folder's entries to disk: a file is found again only by its name."""
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
