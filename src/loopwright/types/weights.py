"""How new weights reach an engine: in place, as a file, or by a broadcast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What one tensor looks like; `dtype` as safetensors spells it."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InPlace:
    """The learner owns the engine's parameters, and has already changed them."""


@dataclass(frozen=True, slots=True)
class WeightFile:
    """The manifest of weights in a safetensors file: where they are, and how to check that they are complete.

    Size and checksum are of the whole file. A reader verifies both before it changes anything.
    """

    path: str
    bytes: int
    checksum: str
    tensors: Mapping[str, TensorSpec]


class BroadcastBackend(StrEnum):
    """Which library of torch.distributed moves the bytes."""

    GLOO = "gloo"
    """Between CPUs, over TCP."""
    NCCL = "nccl"
    """Between GPUs."""


@dataclass(frozen=True, slots=True)
class WeightBroadcast:
    """The bytes of a weight file, which arrive by torch.distributed from the sender at `host` and `port`.

    The sender is rank 0 of a group of `size`; the others are the workers of one engine. Bytes come in buckets of
    `bucket_bytes`. Each side gives up after `seconds`. The path of `file` is not read: size, checksum and tensors are
    those of what arrives.
    """

    file: WeightFile
    host: str
    port: int
    name: str
    size: int
    backend: BroadcastBackend
    seconds: float
    bucket_bytes: int


WeightUpdate = InPlace | WeightFile | WeightBroadcast
IN_PLACE = InPlace()
