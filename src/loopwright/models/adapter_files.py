"""Adapters as peft writes them: `adapter_config.json` and `adapter_model.safetensors` in a folder. They are read here
without peft, and merged into the model that they were trained on. `models.adapter_base` finds that model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from loopwright.config.model_folders import ADAPTER_CONFIG
from loopwright.core.adapter_names import WEIGHT, A, B
from loopwright.errors import ModelError
from loopwright.models.adapters import AdapterShape, merged

CONFIG, TENSORS, BASE = ADAPTER_CONFIG, "adapter_model.safetensors", "adapter_base.json"
"""peft's two files, and ours: the digest of the base that the adapter was trained on."""
FOR_PEFT = {"task_type": "CAUSAL_LM", "auto_mapping": None, "inference_mode": True}
"""What the config of an adapter says besides, for peft to load it as it is."""
PREFIX = "base_model.model."
"""What peft puts before the names of a model's modules."""
PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "fan_in_fan_out": (False, None),
    # The others take something out of W at the start, or leave in W what is not in B·A.
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal"),
    **{
        name: (None, False, {}, [])
        for name in (
            "modules_to_save", "rank_pattern", "alpha_pattern", "layer_replication", "lora_bias",
            "trainable_token_indices", "target_parameters", "alora_invocation_tokens",
        )
    },
}  # fmt: skip
"""Settings of peft that change what an adapter computes, and the values at which W + s·B·A is all there is."""
HARMLESS = frozenset({"use_rslora", "velora_config", "megatron_config"})
"""The settings named use_… and …_config that do not change it. All others do, also those that peft has not got yet."""
MERGE_THERE = "merge it with peft (merge_and_unload), save the model, and name that folder"
COPY_AGAIN = "copy the whole adapter again from where it was written, or name another checkpoint"


@dataclass(frozen=True, slots=True)
class SavedAdapter:
    """An adapter in a folder. `base` is the model that it was trained on, as peft wrote it, and `base_digest` what that
    model was then, if it is known. `whole`: it adapts all layers of the model that `targets` names."""

    folder: str
    base: str
    shape: AdapterShape
    tensors: Mapping[str, torch.Tensor]
    targets: tuple[str, ...] | str
    whole: bool = True
    base_digest: str | None = None

    @torch.no_grad()
    def merge_into(self, model: Any) -> None:
        """Change the parameters of its base. Raises ModelError if the adapter is not one of this model."""
        parameters = dict(model.named_parameters())
        adapted = [name.removesuffix(A) for name in self.tensors if name.endswith(A)]
        for target in adapted:
            a, b = self.tensors[target + A], self.tensors[target + B]
            weight = parameters.get(target.removeprefix(PREFIX) + WEIGHT)
            if weight is None or (len(b), a.shape[1]) != tuple(weight.shape):
                raise ModelError(
                    f"the adapter in {self.folder} does not fit its base model {self.base!r}: {target + A}",
                    remedy=f"name the model that it was trained on as base_model_name_or_path in its {CONFIG}",
                )
        if lacking := sorted(set(self._named_in(parameters)) - {name.removeprefix(PREFIX) for name in adapted}):
            raise ModelError(
                f"the adapter in {self.folder} is damaged: its {CONFIG} names {lacking[0]}, and it has no tensors",
                remedy=COPY_AGAIN,
            )
        for target in adapted:
            weight = parameters[target.removeprefix(PREFIX) + WEIGHT]
            a, b = self.tensors[target + A].float(), self.tensors[target + B].float()
            weight.copy_(merged(weight, a, b * self.shape.scale))

    def _named_in(self, parameters: Mapping[str, torch.Tensor]) -> Iterator[str]:
        """The layers of a model that must have an adapter. A target is the end of their names or, if it is one text,
        an expression that the whole of a name matches."""
        for parameter, weight in parameters.items():
            name = parameter.removesuffix(WEIGHT)
            if name == parameter or weight.ndim != 2 or not self.whole:
                continue
            if isinstance(self.targets, str):
                if re.fullmatch(self.targets, name):
                    yield name
            elif any(name == target or name.endswith(f".{target}") for target in self.targets):
                yield name


def read_adapter(source: str) -> SavedAdapter:
    """Raises ModelError if it is damaged, or is not merely W + s·B·A."""
    folder = Path(source)
    try:
        told = json.loads((folder / CONFIG).read_text())
        odd = [name for name in told if not _is_plain(name, told[name])]
        shape, named = shape_told(told), told["target_modules"]
        base = told["base_model_name_or_path"]
        tensors = load_file(folder / TENSORS)
        digest = base_digest_in(folder)
        if isinstance(named, str):
            re.compile(named)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError, re.error) as error:
        raise ModelError(
            f"the adapter in {source} cannot be read: {type(error).__name__}: {error}",
            remedy=f"name a folder that peft or Loopwright wrote: it has {CONFIG} and {TENSORS}; or another checkpoint",
        ) from error
    others = [name for name in tensors if not name.endswith((A, B))]
    if odd or others:
        what = f"{odd[0]} is {told[odd[0]]!r}" if odd else f"it has the tensor {others[0]!r}"
        raise ModelError(f"the adapter in {source} is more than a plain LoRA: {what}", remedy=MERGE_THERE)
    if damage := _damage(tensors, shape.rank):
        raise ModelError(f"the adapter in {source} is damaged: {damage}", remedy=COPY_AGAIN)
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"the adapter in {source} does not say which model it was trained on",
            remedy=f"write that model's folder as base_model_name_or_path into its {CONFIG}",
        )
    if told.get("revision") not in (None, "main") and not Path(base).is_dir():
        raise ModelError(
            f"the adapter in {source} was trained on the revision {told['revision']!r} of {base}",
            remedy=f"download that revision, and name its folder as base_model_name_or_path in its {CONFIG}",
        )
    whole = not told.get("layers_to_transform") and not told.get("exclude_modules") and named != "all-linear"
    targets = named if isinstance(named, str) else tuple(named)
    return SavedAdapter(source, base, shape, tensors, targets, whole, digest)


def _is_plain(name: str, value: Any) -> bool:
    if name in PLAIN:
        return value in PLAIN[name]
    changes = (name.startswith("use_") or name.endswith("_config")) and name not in HARMLESS
    return not (changes and value)


def _damage(tensors: Mapping[str, torch.Tensor], rank: int) -> str | None:
    """Why these are not the pairs of an adapter of this rank."""
    if not tensors:
        return "it has no tensors"
    for name, tensor in tensors.items():
        end, other_end = (A, B) if name.endswith(A) else (B, A)
        if (other := name.removesuffix(end) + other_end) not in tensors:
            return f"it has {name}, and no {other}"
        if tensor.ndim != 2 or rank < 1 or tensor.shape[0 if end == A else 1] != rank:
            return f"{name} has the shape {list(tensor.shape)}, and its {CONFIG} says rank {rank}"
    return None


def base_digest_in(folder: Path) -> str | None:
    """The digest of the base that an adapter was trained on. Adapters of others, and of older versions, have none."""
    file = folder / BASE
    return str(json.loads(file.read_text())["digest"]) if file.exists() else None


def shape_told(told: Mapping[str, Any]) -> AdapterShape:
    """What an adapter's config says. Raises KeyError or TypeError if it does not say it."""
    named = told["target_modules"]
    targets = (named,) if isinstance(named, str) else tuple(sorted(named))
    return AdapterShape(int(told["r"]), float(told["lora_alpha"]), targets, bool(told.get("use_rslora")))
