"""Streams a model's weights to whoever wants them, in buckets of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from loopwright.models.weight_files import spec_of
from loopwright.ports import WeightSink
from loopwright.types import TensorSpec

Named = tuple[str, torch.Tensor]

BUCKET_BYTES = 2**26
"""How large a bucket is at most, unless one tensor is larger. A learner of several ranks gathers a bucket at a time, so
this much memory is needed besides the shards."""


def stream_weights(tensors: Mapping[str, torch.Tensor], sink: WeightSink) -> None:
    """Give all tensors to `sink`."""
    stream_tensors({name: spec_of(tensor) for name, tensor in tensors.items()}, tensors.items(), sink)


def stream_tensors(specs: Mapping[str, TensorSpec], tensors: Iterable[Named], sink: WeightSink) -> None:
    """Give tensors to `sink` that are made one after the other, in the order of `specs`."""
    sink.begin(specs)
    for bucket in _buckets(tensors):
        sink.take(bucket)


def _buckets(tensors: Iterable[Named]) -> Iterator[Mapping[str, torch.Tensor]]:
    bucket: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if bucket and size + tensor.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = {}, 0
        # Whoever takes it is on the CPU; a copy from a GPU lives as long as its bucket.
        bucket[name] = tensor.detach().cpu()
        size += tensor.nbytes
    if bucket:
        yield bucket
