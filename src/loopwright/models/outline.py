"""A model without its weights: what a process knows of it that neither samples nor trains, and its modules on torch's
`meta` device, which holds shapes and no numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from loopwright.config.model_folders import is_adapter
from loopwright.errors import ModelError
from loopwright.models.adapter_base import refuse_model_with_adapter
from loopwright.models.attention import NAME
from loopwright.models.load import context_of, read_config, source_of
from loopwright.models.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """What the driver knows of a model that its ranks train: no weights. `parameters` says what a token costs, and
    `attention` what a pair of tokens does, in the same unit."""

    tokenizer: Any
    max_context: int
    vocabulary: int
    parameters: int
    attention: int


def outline_of(path: str, *, cache: Path, max_context: int | None = None) -> ModelOutline:
    """Read what is known of the model at `path` without its weights."""
    source = whole_source_of(path, cache)
    config = read_config(source)
    model = model_on_meta(config)
    table = model.get_input_embeddings().weight.numel()
    return ModelOutline(
        load_tokenizer(source),
        context_of(config, max_context),
        int(config.vocab_size),
        # Looking up a row of the table costs nothing; a head of its own, or the table used as one, is counted once.
        sum(parameter.numel() for parameter in model.parameters()) - (0 if _is_tied(model) else table),
        2 * config.num_hidden_layers * config.hidden_size,
    )


def whole_source_of(path: str, cache: Path) -> str:
    """The source of a model that ranks load. Raises ModelError if it is an adapter, or has one beside
    it."""
    source = source_of(path, cache)
    refuse_model_with_adapter(source)
    if is_adapter(Path(source)):
        raise ModelError(
            f"model {path!r} is an adapter, and ranks load whole models",
            remedy="merge it first: loopwright export RUN --merged --out DIR, and name that folder",
        )
    return source


def model_on_meta(config: Any) -> Any:
    """The modules of a model in evaluation mode, whose parameters and buffers have shapes only."""
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME, dtype=torch.float32)
    except (ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"a {config.model_type} model cannot be built without its weights: {error}",
            remedy="train it in one process: set learner.ranks to 1",
        ) from error
    model.tie_weights()
    return model.eval()


def _is_tied(model: Any) -> bool:
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight
