"""Adapters as peft writes them: `adapter_config.json` and `adapter_model.safetensors` in a folder. They are read here
without peft, and merged into the model that they were trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from loopwright.core.adapter_names import WEIGHT, A, B
from loopwright.errors import ModelError
from loopwright.models.adapters import AdapterShape, merged

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""What peft puts before the names of a model's modules."""
PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "fan_in_fan_out": (False, None),
    **{
        name: (None, False, {}, [])
        for name in (
            "use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "layer_replication", "lora_bias",
            "trainable_token_indices", "target_parameters", "use_qalora", "alora_invocation_tokens",
        )
    },
}  # fmt: skip
"""Settings of peft that change what an adapter computes, and the values at which W + s·B·A is all there is."""
MERGE_THERE = "merge it with peft (merge_and_unload), save the model, and name that folder"


@dataclass(frozen=True, slots=True)
class SavedAdapter:
    """An adapter in a folder. `base` is the model that it was trained on, as peft wrote it."""

    folder: str
    base: str
    shape: AdapterShape
    tensors: Mapping[str, torch.Tensor]

    @torch.no_grad()
    def merge_into(self, model: Any) -> None:
        """Change the parameters of its base."""
        parameters = dict(model.named_parameters())
        for name, a in self.tensors.items():
            if not name.endswith(A):
                continue
            target = name.removesuffix(A)
            weight, b = parameters.get(target.removeprefix(PREFIX) + WEIGHT), self.tensors.get(target + B)
            if weight is None or b is None or (len(b), a.shape[1]) != tuple(weight.shape):
                raise ModelError(
                    f"the adapter in {self.folder} does not fit its base model {self.base!r}: {name}",
                    remedy=f"name the model that it was trained on as base_model_name_or_path in its {CONFIG}",
                )
            weight.copy_(merged(weight, a.float(), b.float() * self.shape.scale))


def is_adapter(source: str) -> bool:
    """Whether `source` is a folder with an adapter and no model of its own."""
    folder = Path(source)
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of(source: str) -> tuple[str, tuple[SavedAdapter, ...]]:
    """The whole model that `source` leads to, and the adapters to merge into it, in this order. An adapter's base may
    have been an adapter itself."""
    adapters: list[SavedAdapter] = []
    while is_adapter(source):
        if source in [adapter.folder for adapter in adapters]:
            raise ModelError(f"the adapter in {source} is its own base", remedy=f"name its base in its {CONFIG}")
        adapters.insert(0, read_adapter(source))
        source = adapters[0].base
    return source, tuple(adapters)


def read_adapter(source: str) -> SavedAdapter:
    """Raises ModelError if it is damaged, or is not merely W + s·B·A."""
    folder = Path(source)
    try:
        told = json.loads((folder / CONFIG).read_text())
        odd = [name for name, plain in PLAIN.items() if told.get(name, plain[0]) not in plain]
        shape = shape_told(told)
        base = told["base_model_name_or_path"]
        tensors = load_file(folder / TENSORS)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise ModelError(
            f"the adapter in {source} cannot be read: {type(error).__name__}: {error}",
            remedy=f"name a folder that peft or Loopwright wrote: it has {CONFIG} and {TENSORS}; or another checkpoint",
        ) from error
    others = [name for name in tensors if not name.endswith((A, B))]
    if odd or others:
        what = f"{odd[0]} is {told[odd[0]]!r}" if odd else f"it has the tensor {others[0]!r}"
        raise ModelError(f"the adapter in {source} is more than a plain LoRA: {what}", remedy=MERGE_THERE)
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"the adapter in {source} does not say which model it was trained on",
            remedy=f"write that model's folder as base_model_name_or_path into its {CONFIG}",
        )
    return SavedAdapter(source, base, shape, tensors)


def shape_told(told: Mapping[str, Any]) -> AdapterShape:
    """What an adapter's config says. Raises KeyError or TypeError if it does not say it."""
    named = told["target_modules"]
    targets = (named,) if isinstance(named, str) else tuple(sorted(named))
    return AdapterShape(int(told["r"]), float(told["lora_alpha"]), targets, bool(told.get("use_rslora")))
