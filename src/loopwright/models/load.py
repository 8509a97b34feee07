"""Loads a model and its tokenizer, and proves that they run here before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from loopwright.errors import ModelError
from loopwright.models.adapter_base import base_of, check_base, tokenizer_source, while_base_is_read
from loopwright.models.adapters import has_adapters
from loopwright.models.attention import NAME, unsupported
from loopwright.models.device import CPU
from loopwright.models.forward import PackedForward
from loopwright.models.lean import LeanForward, LeanModel
from loopwright.models.linear import replace_linears
from loopwright.models.memory import room_for_weights
from loopwright.models.native.library import library
from loopwright.models.norm import replace_norms
from loopwright.models.proof import proven
from loopwright.models.recognise import fastest_forward
from loopwright.models.rotary import choose_angles
from loopwright.models.smollm2 import NAME as SMOLLM2
from loopwright.models.smollm2 import smollm2_folder
from loopwright.models.tokenizer import load_tokenizer, read_pretrained

SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model, its tokenizer, and how many tokens its context can hold. Engine and learner share it.
    `forward` computes logits from its parameters in the fastest way that is proven to be correct. `parts` are those of
    a Llama-like model, if it was proven to be one; they are used on a CPU and in float32 only."""

    model: Any
    tokenizer: Any
    max_context: int
    forward: PackedForward
    parts: LeanModel | None = None

    @property
    def vocabulary(self) -> int:
        """How many token ids it knows."""
        return int(self.model.config.vocab_size)


def load_model(
    path: str,
    *,
    cache: Path,
    dtype: str = "float32",
    max_context: int | None = None,
    trained_context: int | None = None,
    device: torch.device | str = "cpu",
    native: bool = True,
) -> LoadedModel:
    """Load a model from a folder, a Hugging Face name, or `smollm2`. Raises ModelError if it could not be trained. An
    adapter is merged into its base. With `native`, the model decodes with native steps if it can. Rotary angles that
    depend on the length are those of `trained_context`, or of `max_context` if that is not given."""
    source = source_of(path, cache)
    base, adapters = base_of(source)
    with while_base_is_read(base, adapters):
        tokenizer = load_tokenizer(tokenizer_source(base, adapters))
        config = read_config(base)
        model = load_weights(base, dtype)
    check_base(base, adapters)
    for adapter in adapters:
        adapter.merge_into(model)
        # New adapters are trained on what this one has made of its base, and a checkpoint of theirs names it as theirs.
        model.name_or_path = source
    # The model always stays in evaluation mode: dropout would make training logprobs differ from sampled ones.
    device = torch.device(device)
    with room_for_weights(base, device, lambda: bytes_of(model)):
        model.to(device).eval()
    if device.type != CPU:
        # Where tensors of the device are of another class, the model got new parameters, one for each of their places.
        model.tie_weights()
    replace_norms(model)
    if device.type == CPU:
        replace_linears(model)
    longest = context_of(config, max_context)
    choose_angles(model, context_of(config, trained_context or longest))
    find = (lambda: library(cache / "native")) if native else None
    forward = fastest_forward(model, proven(model, longest), find)
    parts = forward.model if isinstance(forward, LeanForward) else None
    return LoadedModel(model, tokenizer, longest, forward, parts)


def source_of(path: str, cache: Path) -> str:
    """The folder, or the Hugging Face name, that has the files of the model at `path`."""
    return str(smollm2_folder(cache)) if path == SMOLLM2 else path


def read_config(source: str) -> Any:
    """The model's own config. Raises ModelError if such a model could not be trained."""
    config = read_pretrained(AutoConfig, source, "config")
    _check_architecture(config)
    return config


def context_of(config: Any, wanted: int | None) -> int:
    """How many tokens the context holds: as many as `wanted`, if the model can."""
    limit = getattr(config, "max_position_embeddings", None) or 2048
    return min(limit, wanted or limit)


def load_weights(source: str, dtype: str) -> Any:
    """The model, without what makes it ours."""
    options = {"dtype": getattr(torch, dtype), "attn_implementation": NAME, "output_loading_info": True}
    with room_for_weights(source, torch.device(CPU), lambda: bytes_of(without_weights(read_config(source), dtype))):
        model, report = read_pretrained(AutoModelForCausalLM, source, "weights", **options)
    if has_adapters(model):
        # transformers has found an adapter there and put peft's layers into the base of that.
        raise ModelError(
            f"model {source!r} is an adapter, or has one beside it",
            remedy="download it, and name a folder with the adapter alone",
        )
    # transformers fills gaps with random numbers and only prints a warning.
    if missing := report["missing_keys"]:
        raise ModelError(
            f"model {source!r} lacks {len(missing)} of its weights, such as {min(missing)!r}",
            remedy="save the whole model again with save_pretrained; its config.json may belong to another model",
        )
    return model


def without_weights(config: Any, dtype: str) -> Any:
    """The model without weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation=NAME)


def bytes_of(model: Any) -> int:
    """What the weights of a model take."""
    return sum(parameter.nbytes for parameter in model.parameters())


def _check_architecture(config: Any) -> None:
    name = getattr(config, "model_type", "model")
    if getattr(config, "is_encoder_decoder", False):
        raise unsupported(name, "it is an encoder-decoder")
    if not (hasattr(config, "vocab_size") and hasattr(config, "num_hidden_layers")):
        raise unsupported(name, "it is not a plain language model")
    if others := set(getattr(config, "layer_types", None) or ()) - SUPPORTED_LAYERS:
        raise unsupported(name, f"it has {', '.join(sorted(others))} layers")
