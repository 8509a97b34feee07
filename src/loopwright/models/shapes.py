"""A model without its weights, made of its config alone: to find out what memory it needs.

It has the parts that `load_model` would give it, but nothing is proven: whether a model runs as a Llama is known by its
parts here. On a CPU its tensors are those of a FakeTensorMode, which must be entered while it is used: they say that
they are on the CPU, so everything takes the path that it takes there. Those of another device are on `meta`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from loopwright.models.adapter_base import base_of, while_base_is_read
from loopwright.models.device import CPU
from loopwright.models.expert_shapes import ExpertShapes
from loopwright.models.forward import ModuleForward, PackedForward
from loopwright.models.lean import LeanForward
from loopwright.models.linear import replace_linears
from loopwright.models.load import LoadedModel, bytes_of, context_of, read_config, source_of, without_weights
from loopwright.models.norm import replace_norms
from loopwright.models.probe import Probe, run_probe
from loopwright.models.recognise import llama_parts

META = "meta"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model without weights. `loaded` has no tokenizer."""

    loaded: LoadedModel

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """Each once, also those that several parts share."""
        return dict(self.loaded.model.named_parameters())

    @property
    def size(self) -> int:
        """The bytes of its weights."""
        return bytes_of(self.loaded.model)

    @property
    def vocabulary(self) -> int:
        size: int = self.loaded.model.config.vocab_size
        return size


@contextmanager
def model_shape(
    path: str, *, cache: Path, dtype: str, max_context: int | None = None, device_type: str = CPU
) -> Iterator[ModelShape]:
    """The shape of the model that `load_model` would load. It is usable inside of the context only. Raises ModelError
    if the model could not run here."""
    base, adapters = base_of(source_of(path, cache))
    with while_base_is_read(base, adapters):
        config = read_config(base)
    model = without_weights(config, dtype)
    model.eval()
    # Which rows of the table have gradients depends on the ids, and makes no difference to memory.
    model.get_input_embeddings().padding_idx = None
    _replace_norms(model)
    longest = context_of(config, max_context)
    if device_type != CPU:
        model.to(META)
        with ExpertShapes():
            yield ModelShape(LoadedModel(model, None, longest, ModuleForward(model)))
        return
    replace_linears(model)
    with FakeTensorMode(allow_non_fake_inputs=True), ExpertShapes(), torch.device(CPU):
        _fake(model)
        parts = None
        if dtype == "float32":
            probe = Probe.of(model, longest)
            with torch.no_grad():
                parts = llama_parts(model, run_probe(ModuleForward(model), probe).asked)
        forward: PackedForward = ModuleForward(model) if parts is None else LeanForward(parts)
        yield ModelShape(LoadedModel(model, None, longest, forward, parts))


def _replace_norms(model: Any) -> None:
    """Norms are recognised by their numbers, so theirs are needed. They are small."""
    for module in model.modules():
        own = list(module.named_parameters(recurse=False))
        if [name for name, _ in own] == ["weight"] and own[0][1].ndim == 1 and not list(module.children()):
            module.weight = nn.Parameter(torch.ones(own[0][1].shape, dtype=own[0][1].dtype))
    replace_norms(model)


def _fake(model: Any) -> None:
    """Give the model parameters and buffers of a CPU without numbers. Shared ones stay shared."""
    made: dict[torch.Tensor, torch.Tensor] = {}
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            if old not in made:
                made[old] = nn.Parameter(torch.empty(old.shape, dtype=old.dtype))
            setattr(module, name, made[old])
        for name, old in list(module.named_buffers(recurse=False)):
            module.register_buffer(name, torch.empty(old.shape, dtype=old.dtype), persistent=False)
