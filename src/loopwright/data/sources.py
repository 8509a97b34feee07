"""From a config's `data` section to the tasks themselves."""

from __future__ import annotations

from pathlib import Path

from loopwright.config import JsonlData, PythonData
from loopwright.data.jsonl import JsonlSource
from loopwright.data.python import PythonSource
from loopwright.ports import TaskSource


def open_source(data: JsonlData | PythonData, base: Path) -> TaskSource:
    """Open the tasks; relative paths start from `base`. Raises DataError, or ConfigError for a bad import."""
    match data:
        case JsonlData():
            return JsonlSource.open(base / data.path)
        case PythonData():
            return PythonSource.open(data.path, data.args, base)
