"""Writes tasks of Harbor to a Parquet file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from loopwright.errors import DataError


def write_table(records: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write the file as a whole: it is there with all tasks, or as it was."""
    written = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        # A column that some tasks lack is null there.
        names = list(dict.fromkeys(name for record in records for name in record))
        table = pa.Table.from_pylist([{name: record.get(name) for name in names} for record in records])
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, written)
        written.replace(file)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file}: cannot be written: {error}",
            remedy="give each key of [metadata] the same type in all tasks, and see to the disk",
            file=str(file),
        ) from error
    finally:
        written.unlink(missing_ok=True)
