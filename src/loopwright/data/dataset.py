"""Tasks from a folder of Hugging Face datasets. Nothing is downloaded, and rows are memory-mapped, not loaded.

The `datasets` library reads the folder, because it knows which file of a snapshot belongs to which split and subset.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from loopwright.config.problems import suggest
from loopwright.data.mapping import RowMap, reading_row
from loopwright.errors import DataError
from loopwright.types import Task

SAVED = ("state.json", "dataset_dict.json")
"""The files that `save_to_disk` writes: for one split, and for several."""


@dataclass(frozen=True, slots=True, eq=False)
class DatasetSource:
    """The rows of one split."""

    folder: Path
    split: str
    table: Any
    rows: RowMap

    @classmethod
    def open(
        cls, folder: Path, split: str = "train", subset: str | None = None, rows: RowMap | None = None
    ) -> DatasetSource:
        """Open the split and read one row, so that a wrong mapping is found at once."""
        try:
            saved = any((folder / name).is_file() for name in SAVED)
            table = _saved(folder, split) if saved else _snapshot(folder, split, subset)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise DataError(
                f"{folder}: cannot be read as a dataset: {error}",
                remedy="name a folder written by save_to_disk, or a snapshot of a dataset repository",
                file=str(folder),
            ) from error
        if not len(table):
            raise DataError(f"{folder}: split {split!r} is empty", remedy="choose another split", file=str(folder))
        source = cls(folder, split, table, rows or RowMap(nulls_are_absent=True))
        source[0]
        return source

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        where = f"{self.folder}: row {index} of split {self.split!r}"
        with reading_row(where, file=str(self.folder), row=index):
            row = self.table[index]
        return self.rows.task(row, default_id=f"{self.split}:{index}", where=where, file=str(self.folder), row=index)


def _saved(folder: Path, split: str) -> datasets.Dataset:
    saved = datasets.load_from_disk(str(folder))
    known = saved if isinstance(saved, datasets.DatasetDict) else {str(saved.split or split): saved}
    if split not in known:
        raise DataError(
            f"{folder}: there is no split {split!r}", remedy=suggest(split, sorted(known), "there is"), file=str(folder)
        )
    return known[split]


def _snapshot(folder: Path, split: str, subset: str | None) -> datasets.Dataset:
    offline = datasets.DownloadConfig(local_files_only=True)
    return datasets.load_dataset(str(folder), name=subset, split=split, download_config=offline)
