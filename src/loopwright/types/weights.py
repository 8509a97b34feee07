"""A model's weights as a file: what a process needs to know to read them safely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What one tensor looks like; `dtype` as safetensors spells it."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightFile:
    """The manifest of weights in a safetensors file: where they are, and how to check that they are complete.

    Size and checksum are of the whole file. A reader verifies both before it changes anything.
    """

    path: str
    bytes: int
    checksum: str
    tensors: Mapping[str, TensorSpec]
