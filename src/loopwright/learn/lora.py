"""Trains adapters by peft beside the frozen weights of a model (LoRA).

The learner computes with a model object of its own, which shares all parameters with the loaded one, and has adapters
in its layers. An engine in this process goes on with the loaded model, and its fast forward pass: the weights that have
adapters are its own then, and are filled with W + s·B·A at each update. Engines elsewhere get the adapters and do the
same, or get whole weights if they cannot.

No layer by hand and no lean forward knows of adapters: they refuse peft's layers by type.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from loopwright.core.adapter_names import WEIGHT, A, B
from loopwright.learn.adapters import add_adapters
from loopwright.learn.body import Body, body_of
from loopwright.learn.publishing import Named, stream_tensors, stream_weights
from loopwright.learn.state import save_model
from loopwright.models.adapter_files import TENSORS
from loopwright.models.adapters import AdapterShape, merged
from loopwright.models.forward import ModuleForward
from loopwright.models.load import LoadedModel
from loopwright.models.weight_files import spec_of
from loopwright.ports import WeightSink


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """Who samples with the adapters. `beside_engine`: an engine of this process computes with the loaded model.
    `merged_for_engines`: engines elsewhere cannot merge adapters, and get whole weights."""

    beside_engine: bool = False
    merged_for_engines: bool = False


class AdaptedModel:
    """A `Trained` whose parameters are the adapters of `loaded`. Their first numbers depend on `seed` only."""

    file = TENSORS

    def __init__(self, loaded: LoadedModel, shape: AdapterShape, seed: int, use: AdapterUse | None = None) -> None:
        use = use or AdapterUse()
        self._plain = loaded
        self._sends_whole_weights = use.merged_for_engines
        twin = _twin(loaded.model)
        self._adapters = add_adapters(twin, shape, loaded.model.name_or_path)
        self._loaded = replace(loaded, model=twin, forward=ModuleForward(twin), parts=None)
        with torch.no_grad():
            for matrix, first in self._adapters.start(seed):
                matrix.copy_(first)
        if use.beside_engine:
            for layer in self._adapters.layers.values():
                own = layer.base_layer.weight.detach().clone()
                layer.base_layer.weight = nn.Parameter(own, requires_grad=False)
        self.parameters = self._adapters.parameters

    @property
    def base(self) -> Mapping[str, torch.Tensor]:
        """The weights that have adapters, without them, by the names that they have in the loaded model."""
        return {name + WEIGHT: layer.base_layer.weight.detach() for name, layer in self._adapters.layers.items()}

    def body(self, *, checkpointed: bool) -> Body:
        return body_of(self._loaded, checkpointed=checkpointed)

    def reference(self) -> Body:
        """The model without its adapters: what it was before training."""
        return self._adapters.without(body_of(self._loaded))

    def publish(self, sink: WeightSink) -> None:
        if not self._sends_whole_weights:
            stream_weights(self._for_engines(), sink)
            return
        specs = {name: spec_of(parameter) for name, parameter in self._plain.model.named_parameters()}
        stream_tensors(specs, self._whole_weights(), sink)

    def check(self, folder: Path) -> None:
        self._adapters.check(folder)

    def describe(self, folder: Path) -> None:
        # With these files peft can load the checkpoint.
        self._adapters.describe(folder)
        self._plain.tokenizer.save_pretrained(folder)

    def export(self, folder: Path) -> None:
        model = self._plain.model
        whole = dict(self._whole_weights())
        # Tied weights have one parameter and several names.
        state = {name: whole.get(name, tensor) for name, tensor in model.state_dict().items()}
        save_model(model, folder, state)
        self._plain.tokenizer.save_pretrained(folder)

    def _for_engines(self) -> Mapping[str, torch.Tensor]:
        return dict(self._adapters.for_engines(torch.Tensor.detach))

    @torch.no_grad()
    def _whole_weights(self) -> Iterator[Named]:
        adapters, base = self._for_engines(), self.base
        for name, parameter in self._plain.model.named_parameters():
            if (weight := base.get(name)) is None:
                yield name, parameter.detach()
            else:
                target = name.removesuffix(WEIGHT)
                yield name, merged(weight, adapters[target + A], adapters[target + B])


def _twin(model: Any) -> Any:
    """A model of its own modules, with the same parameters."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
