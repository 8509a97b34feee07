"""Holds the tokens and transcripts of finished groups outside the database: one Parquet file per train step for the
groups that it consumed, and one per checkpoint for groups that were not trained.

A file is written completely, flushed to disk and renamed before the database deletes what is in it. So each payload is
in at least one of the two at any moment.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from loopwright.buffer.payload_file import Payload, PayloadKey, piece_of_each, read_piece, write_payloads
from loopwright.buffer.rows import RolloutRow
from loopwright.errors import RunError

REMEDY = "pip install 'loopwright[parquet]'"

GroupKey = tuple[str, int, int]
"""Task set, draw and round."""

FILES_KEPT = 4
"""Of how many files it is remembered in which piece a payload is. Readers go through neighbouring groups, and these
alternate between files of trained and of untrained groups."""
MOST_KEPT_BYTES = 128 << 20
"""So much of what was read last stays in memory, and always the last piece."""


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


class Archive:
    """The files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pieces: dict[Parcel, Mapping[PayloadKey, int]] = {}
        self._kept: dict[tuple[Parcel, int], Mapping[PayloadKey, Payload]] = {}
        self._bytes: dict[tuple[Parcel, int], int] = {}

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
            write_payloads(draft, payloads)
            draft.replace(path)
            self._flush_names()
        except OSError as error:
            raise RunError(
                f"{path} cannot be written: {error}",
                remedy="free some disk space, or set buffer.archive to false; nothing is lost, and the same command "
                "goes on",
            ) from error
        self._forget_file(parcel)

    def restored(self, group: GroupKey, parcel: Parcel | None, row: RolloutRow) -> RolloutRow:
        """The row with its payload, from the database or from the archive. `parcel` is the file of its group."""
        if row.stop is None or row.chains is not None:
            return row
        payload = self.payload(parcel, (*group, row.member, row.attempt)) if parcel is not None else None
        if payload is None:
            raise RunError(
                f"the tokens of {group[0]}/{group[1]:06d}/{row.member:02d}/{row.attempt} are neither in the database "
                "nor in the archive",
                remedy=f"restore {self.path(parcel) if parcel else 'the database'} from a copy",
            )
        return row._replace(messages=payload.messages, chains=payload.chains)

    def numbers(self, group: GroupKey, parcel: Parcel, member: int, attempt: int) -> bytes | None:
        """The numbers of the rollout's trained tokens, if its file has them."""
        payload = self.payload(parcel, (*group, member, attempt))
        return None if payload is None else payload.numbers

    def payload(self, parcel: Parcel, key: PayloadKey) -> Payload | None:
        """The payload of one rollout. Only its piece of the file is read. None if it is not there."""
        piece = self._pieces_of(parcel).get(key)
        found = None if piece is None else self._piece(parcel, piece).get(key)
        if piece is None or found is not None:
            return found
        # A run that was resumed has replaced the file since.
        self._forget_file(parcel)
        piece = self._pieces_of(parcel).get(key)
        return None if piece is None else self._piece(parcel, piece).get(key)

    def read(self, parcel: Parcel) -> Iterator[Payload]:
        """The payloads of one file, piece by piece; none if there is no file."""
        for piece in sorted(set(self._pieces_of(parcel).values())):
            yield from self._piece(parcel, piece).values()

    def _pieces_of(self, parcel: Parcel) -> Mapping[PayloadKey, int]:
        pieces = self._pieces.pop(parcel, None)
        if pieces is None:
            pieces = self._looked_at(self.path(parcel))
        self._pieces[parcel] = pieces
        while len(self._pieces) > FILES_KEPT:
            del self._pieces[next(iter(self._pieces))]
        return pieces

    def _piece(self, parcel: Parcel, piece: int) -> Mapping[PayloadKey, Payload]:
        place = parcel, piece
        payloads = self._kept.pop(place, None)
        if payloads is None:
            payloads = read_piece(self.path(parcel), piece)
            self._bytes[place] = sum(payload.size for payload in payloads.values())
        self._kept[place] = payloads
        while len(self._kept) > 1 and sum(self._bytes.values()) > MOST_KEPT_BYTES:
            self._forget(next(iter(self._kept)))
        return payloads

    def _forget_file(self, parcel: Parcel) -> None:
        self._pieces.pop(parcel, None)
        for place in [place for place in self._kept if place[0] == parcel]:
            self._forget(place)

    def _forget(self, place: tuple[Parcel, int]) -> None:
        del self._kept[place], self._bytes[place]

    def _looked_at(self, path: Path) -> Mapping[PayloadKey, int]:
        if not path.is_file():
            return {}
        if not self.is_possible():
            raise RunError(f"{path} cannot be read without the package pyarrow", remedy=REMEDY)
        return piece_of_each(path)

    def _flush_names(self) -> None:
        """Flush the folder's entries to disk, because a file is found only by its name."""
        for folder in (self._folder, self._folder.parent):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
