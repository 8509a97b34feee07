"""What ranks train of a sharded model, and what others get of it: all of its parameters, or adapters. Every call is a
collective of all ranks, in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from loopwright.core.adapter_names import WEIGHT, A, B
from loopwright.learn.ranks.parts import gathered_from
from loopwright.learn.ranks.state import Beat, stream_gathered, stream_whole
from loopwright.learn.state import MODEL, describe_model
from loopwright.learn.trained import refuse_adapters
from loopwright.models.adapter_files import TENSORS
from loopwright.models.adapters import merged
from loopwright.models.weight_files import spec_of
from loopwright.ports import WeightSink
from loopwright.types import TensorSpec

Named = tuple[str, torch.Tensor]


class ShardedTrained(Protocol):
    """What of a sharded model is trained, by the names in checkpoints, and the file of a checkpoint that holds it."""

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]: ...

    @property
    def file(self) -> str: ...

    def check(self, folder: Path) -> None:
        """Raises CheckpointError if the checkpoint in `folder` is of another kind."""
        ...

    def describe(self, folder: Path) -> None:
        """Write beside the weights what other tools need to read them. Only rank 0 calls it."""
        ...

    def publish(self, sink: WeightSink) -> None:
        """Give what engines need to the sink of rank 0."""
        ...

    def stream(self, sink: WeightSink) -> None:
        """Give the whole model to the sink of rank 0, in the precision in which it computes."""
        ...


class ShardedModel:
    """All parameters."""

    file = MODEL

    def __init__(self, model: Any, dtype: torch.dtype, beat: Beat) -> None:
        self._model = model
        self._dtype = dtype
        self._beat = beat
        self.parameters: Mapping[str, torch.Tensor] = dict(model.named_parameters())

    def check(self, folder: Path) -> None:
        refuse_adapters(folder)

    def describe(self, folder: Path) -> None:
        # With the tokenizer the checkpoint is also a model folder that transformers can load.
        describe_model(self._model, folder)

    def publish(self, sink: WeightSink) -> None:
        stream_whole(self.parameters, self._dtype, sink, self._beat)

    def stream(self, sink: WeightSink) -> None:
        self.publish(sink)


class ShardedAdapters:
    """The adapters, whose frozen model is sharded too. Engines get them alone, or whole weights if
    `merged_for_engines`."""

    file = TENSORS

    def __init__(self, adapters: Any, dtype: torch.dtype, beat: Beat, *, merged_for_engines: bool) -> None:
        self._adapters = adapters
        self._dtype = dtype
        self._beat = beat
        self._sends_whole_weights = merged_for_engines
        self.parameters: Mapping[str, torch.Tensor] = adapters.parameters

    def check(self, folder: Path) -> None:
        self._adapters.check(folder)

    def describe(self, folder: Path) -> None:
        self._adapters.describe(folder)

    def publish(self, sink: WeightSink) -> None:
        if self._sends_whole_weights:
            self.stream(sink)
            return
        with torch.device("meta"):
            specs = {
                name: spec_of(matrix) for name, matrix in self._adapters.for_engines(lambda one: torch.empty(one.shape))
            }
        stream_gathered(specs, self._adapters.for_engines(gathered_from), sink, self._beat)

    def stream(self, sink: WeightSink) -> None:
        with torch.device("meta"):
            specs: dict[str, TensorSpec] = {
                name: spec_of(torch.empty(weight.shape, dtype=self._dtype))
                for name, weight in self._adapters.frozen.items()
            }
        stream_gathered(specs, self._merged(), sink, self._beat)

    @torch.no_grad()
    def _merged(self) -> Iterator[Named]:
        adapters = dict(self._adapters.for_engines(gathered_from))
        for name, weight in self._adapters.frozen.items():
            whole = gathered_from(weight).to(self._dtype)
            target = name.removesuffix(WEIGHT)
            if target + A in adapters and dist.get_rank() == 0:
                whole = merged(whole, adapters[target + A], adapters[target + B])
            yield name, whole
