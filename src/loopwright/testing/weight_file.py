"""Writes tensors as a weight file, for tests that have no learner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopwright.types import WeightFile


def weight_file(tensors: Mapping[str, Any], file: Path) -> WeightFile:
    from loopwright.models.weight_files import WeightFileWriter, spec_of

    writer = WeightFileWriter(file)
    writer.begin({name: spec_of(tensor) for name, tensor in tensors.items()})
    writer.take(tensors)
    return writer.finish()
