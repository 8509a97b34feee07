"""Opens the source that a config's `data` section describes. A source's package is imported only if it is used."""

from __future__ import annotations

from pathlib import Path

from loopwright.config import (
    NO_OBJECTS,
    DataConfig,
    DatasetData,
    HarborData,
    JsonlData,
    Objects,
    ParquetData,
    PythonData,
    ReasoningGymData,
)
from loopwright.config.extras import require_extras
from loopwright.data.harbor import HarborSource
from loopwright.data.jsonl import JsonlSource
from loopwright.data.mapping import RowMap
from loopwright.data.python import PythonSource
from loopwright.ports import TaskSource


def open_source(data: DataConfig, base: Path, objects: Objects = NO_OBJECTS) -> TaskSource:
    """Open the tasks. Relative paths start from `base`. Raises DataError, or ConfigError for a bad import."""
    require_extras(data, data.kind)
    match data:
        case JsonlData():
            return JsonlSource.open(base / data.path, RowMap.of(data, base))
        case ParquetData():
            from loopwright.data.parquet import ParquetSource

            return ParquetSource.open(data.path, base, RowMap.of(data, base))
        case DatasetData():
            from loopwright.data.dataset import DatasetSource

            return DatasetSource.open(base / data.path, data.split, data.subset, RowMap.of(data, base))
        case PythonData():
            return PythonSource.open(data.path, data.args, base, objects)
        case ReasoningGymData():
            from loopwright.data.reasoning_gym import ReasoningGymSource

            return ReasoningGymSource.open(data)
        case HarborData():
            return HarborSource.open(base / data.path, skip_broken=data.skip_broken)
