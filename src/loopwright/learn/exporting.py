"""Makes a model that anybody can load from a checkpoint of a learner, without the learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from loopwright.errors import CheckpointError
from loopwright.models.tokenizer import load_tokenizer, read_pretrained


def write_model(checkpoint: Path, target: Path, dtype: str) -> None:
    """Write the model and the tokenizer of `checkpoint` into `target`, as `save_pretrained` does, with the numbers that
    the model computes with: those of the optimiser, rounded to `dtype`."""
    model = _trained_model(checkpoint, getattr(torch, dtype))
    tokenizer = load_tokenizer(str(checkpoint))
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _trained_model(checkpoint: Path, dtype: torch.dtype) -> Any:
    model, report = read_pretrained(
        AutoModelForCausalLM, str(checkpoint), "weights", dtype=dtype, output_loading_info=True
    )
    # transformers fills gaps with random numbers and only prints a warning.
    if missing := report["missing_keys"]:
        raise CheckpointError(
            f"checkpoint {checkpoint} lacks {len(missing)} weights of its model, such as {min(missing)!r}",
            remedy="export the checkpoint of another step",
        )
    return model
