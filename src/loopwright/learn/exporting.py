"""Makes a model that anybody can load from a checkpoint of a learner, without the learner."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from loopwright.config.model_folders import is_adapter
from loopwright.errors import CheckpointError
from loopwright.learn.state import save_model
from loopwright.models.adapter_base import base_of, check_base, while_base_is_read
from loopwright.models.adapter_files import BASE, CONFIG, FOR_PEFT, TENSORS, read_adapter
from loopwright.models.tokenizer import load_tokenizer, read_pretrained


def write_model(checkpoint: Path, target: Path, dtype: str) -> None:
    """Write the model and the tokenizer of `checkpoint` into `target`, as `save_pretrained` does, with the numbers that
    the model computes with: those of the optimiser, rounded to `dtype`, or the base with its adapter merged into it."""
    model = _trained_model(checkpoint, getattr(torch, dtype))
    tokenizer = load_tokenizer(str(checkpoint))
    save_model(model, target)
    tokenizer.save_pretrained(target)


def write_adapter(checkpoint: Path, target: Path) -> None:
    """Write the adapter of `checkpoint` and the tokenizer into `target`, as peft does."""
    if not is_adapter(checkpoint):
        raise CheckpointError(
            f"checkpoint {checkpoint} has no adapter: its run trained all weights",
            remedy="leave out --adapter, and get the whole model",
        )
    base = read_adapter(str(checkpoint)).base
    if is_adapter(Path(base)):
        raise CheckpointError(
            f"checkpoint {checkpoint} holds an adapter on top of the adapter in {base}, which peft would leave out",
            remedy="export the whole model: --merged",
        )
    tokenizer = load_tokenizer(str(checkpoint))
    target.mkdir(parents=True)
    # Checkpoints of older versions have no task type, and peft's AutoPeftModelForCausalLM wants one.
    told = json.loads((checkpoint / CONFIG).read_text()) | FOR_PEFT
    (target / CONFIG).write_text(json.dumps(told, indent=2))
    for name in (TENSORS, BASE):
        if (checkpoint / name).exists():
            shutil.copyfile(checkpoint / name, target / name)
    tokenizer.save_pretrained(target)


def _trained_model(checkpoint: Path, dtype: torch.dtype) -> Any:
    base, adapters = base_of(str(checkpoint))
    with while_base_is_read(base, adapters):
        model, report = read_pretrained(AutoModelForCausalLM, base, "weights", dtype=dtype, output_loading_info=True)
    check_base(base, adapters)
    # transformers fills gaps with random numbers and only prints a warning.
    if missing := report["missing_keys"]:
        raise CheckpointError(
            f"checkpoint {checkpoint} lacks {len(missing)} weights of its model, such as {min(missing)!r}",
            remedy="export the checkpoint of another step",
        )
    for adapter in adapters:
        adapter.merge_into(model)
    return model
