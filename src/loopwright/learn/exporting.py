"""Makes a model that anybody can load from a checkpoint of a learner, without the learner."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from loopwright.errors import CheckpointError
from loopwright.models.adapter_files import CONFIG, TENSORS, base_of, is_adapter
from loopwright.models.tokenizer import load_tokenizer, read_pretrained


def write_model(checkpoint: Path, target: Path, dtype: str) -> None:
    """Write the model and the tokenizer of `checkpoint` into `target`, as `save_pretrained` does, with the numbers that
    the model computes with: those of the optimiser, rounded to `dtype`, or the base with its adapter merged into it."""
    model = _trained_model(checkpoint, getattr(torch, dtype))
    tokenizer = load_tokenizer(str(checkpoint))
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def write_adapter(checkpoint: Path, target: Path) -> None:
    """Write the adapter of `checkpoint` and the tokenizer into `target`, as peft does."""
    if not is_adapter(str(checkpoint)):
        raise CheckpointError(
            f"checkpoint {checkpoint} has no adapter: its run trained all weights",
            remedy="leave out --adapter, and get the whole model",
        )
    tokenizer = load_tokenizer(str(checkpoint))
    target.mkdir(parents=True)
    for name in (CONFIG, TENSORS):
        shutil.copyfile(checkpoint / name, target / name)
    tokenizer.save_pretrained(target)


def _trained_model(checkpoint: Path, dtype: torch.dtype) -> Any:
    base, adapters = base_of(str(checkpoint))
    model, report = read_pretrained(AutoModelForCausalLM, base, "weights", dtype=dtype, output_loading_info=True)
    # transformers fills gaps with random numbers and only prints a warning.
    if missing := report["missing_keys"]:
        raise CheckpointError(
            f"checkpoint {checkpoint} lacks {len(missing)} weights of its model, such as {min(missing)!r}",
            remedy="export the checkpoint of another step",
        )
    for adapter in adapters:
        adapter.merge_into(model)
    return model
