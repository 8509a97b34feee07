"""Tasks from Parquet files. A row group is read when it is needed, and only one row at a time becomes Python
objects."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from loopwright.config.files import table_files
from loopwright.data.mapping import RowMap, reading_row
from loopwright.errors import DataError
from loopwright.types import Task

CACHED_BYTES = 256 * 2**20
"""Row groups that were read are cached in Arrow's form up to this size. The last one is always cached."""


class _RowGroup(NamedTuple):
    """`first` is the number of its first row within its file."""

    file: Path
    number: int
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class ParquetSource:
    """The rows of all `groups`, in order. `ends` holds the number of rows up to the end of each group."""

    groups: tuple[_RowGroup, ...]
    ends: npt.NDArray[np.int64]
    rows: RowMap
    cache: OrderedDict[_RowGroup, pa.Table] = field(default_factory=OrderedDict)

    @classmethod
    def open(cls, path: str, base: Path, rows: RowMap | None = None) -> ParquetSource:
        """Read the files' footers and one row, so that a wrong mapping is found at once. `path` is relative to
        `base`."""
        groups: list[_RowGroup] = []
        sizes: list[int] = []
        for file in table_files(path, base):
            with _reading(file):
                metadata = pq.read_metadata(file)
            first = 0
            for number in range(metadata.num_row_groups):
                groups.append(_RowGroup(file, number, first))
                sizes.append(metadata.row_group(number).num_rows)
                first += sizes[-1]
        source = cls(tuple(groups), np.cumsum(sizes, dtype=np.int64), rows or RowMap(nulls_are_absent=True))
        if not len(source):
            place = str(base / path)
            raise DataError(f"{place}: there are no tasks in it", remedy="write one task per row", file=place)
        source[0]
        return source

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        place = int(np.searchsorted(self.ends, index, side="right"))
        group = self.groups[place]
        within = index - (int(self.ends[place - 1]) if place else 0)
        table, number = self._table(group), group.first + within
        named: dict[str, Any] = {"where": f"{group.file}: row {number}", "file": str(group.file), "row": number}
        with reading_row(**named):
            (row,) = table.slice(within, 1).to_pylist()
        return self.rows.task(row, default_id=f"{group.file.stem}:{number}", **named)

    def _table(self, group: _RowGroup) -> Any:
        if group in self.cache:
            self.cache.move_to_end(group)
            return self.cache[group]
        with _reading(group.file), pq.ParquetFile(group.file) as file:
            self.cache[group] = file.read_row_group(group.number)
        while len(self.cache) > 1 and sum(table.nbytes for table in self.cache.values()) > CACHED_BYTES:
            self.cache.popitem(last=False)
        return self.cache[group]


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file}: cannot be read as Parquet: {error}", remedy="check the file, or set data.kind", file=str(file)
        ) from error
