"""One Parquet file of payloads, in pieces that can be read alone: whoever looks at one rollout reads its piece, not the
whole file, which may have a gigabyte.

Files of earlier versions are one piece.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from loopwright.errors import RunError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

PIECE_BYTES = 1 << 20
"""A piece has so many bytes before it is compressed, or one larger payload."""

PayloadKey = tuple[str, int, int, int, int]


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

    @property
    def key(self) -> PayloadKey:
        return self[:5]

    @property
    def size(self) -> int:
        return len(self.messages) + len(self.chains) + len(self.numbers or b"")


KEY, NEEDED = Payload._fields[:5], Payload._fields[:7]


def write_payloads(path: Path, payloads: Sequence[Payload]) -> None:
    """Write the file, and wait until it is on disk."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(dict(zip(Payload._fields, zip(*payloads, strict=True), strict=True)))
    with path.open("wb") as file:
        with pq.ParquetWriter(file, table.schema, compression="zstd") as writer:
            for begin, end in _pieces(payloads):
                writer.write_table(table.slice(begin, end - begin))
        file.flush()
        os.fsync(file.fileno())


def _pieces(payloads: Sequence[Payload]) -> Iterator[tuple[int, int]]:
    begin = size = 0
    for place, payload in enumerate(payloads):
        if size and size + payload.size > PIECE_BYTES:
            yield begin, place
            begin, size = place, 0
        size += payload.size
    yield begin, len(payloads)


def piece_of_each(path: Path) -> dict[PayloadKey, int]:
    """In which piece of the file each payload is."""
    with _opened(path) as file:
        found: dict[PayloadKey, int] = {}
        for piece in range(file.num_row_groups):
            columns = file.read_row_group(piece, columns=list(KEY), use_threads=False).to_pydict()
            found |= dict.fromkeys(zip(*(columns[name] for name in KEY), strict=True), piece)
        return found


def read_piece(path: Path, piece: int) -> Mapping[PayloadKey, Payload]:
    """The payloads of one piece. Empty if the file was replaced meanwhile, and has fewer."""
    with _opened(path) as file:
        if piece >= file.num_row_groups:
            return {}
        columns = file.read_row_group(piece, use_threads=False).to_pydict()
        names = [name for name in Payload._fields if name in columns]
        rows = zip(*(columns[name] for name in names), strict=True)
        payloads = (Payload(**dict(zip(names, row, strict=True))) for row in rows)
        return {payload.key: payload for payload in payloads}


@contextmanager
def _opened(path: Path) -> Iterator[ParquetFile]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not `read_table`: its first call imports pandas, if that is installed, and takes 50 times as long as reading.
        with pq.ParquetFile(path) as file:
            if not set(NEEDED) <= set(file.schema_arrow.names):
                raise RunError(f"{path} is no file of rollouts", remedy="restore it from a copy")
            yield file
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} cannot be read: {error}", remedy="restore it from a copy") from error
