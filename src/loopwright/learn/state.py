"""A learner's state on disk: safetensors and JSON, no pickle. What is loaded continues bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from loopwright.errors import CheckpointError

MODEL, OPTIMIZER, META = "model.safetensors", "optimizer.safetensors", "learner.json"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save(folder: Path, model: Any, optimizer: torch.optim.Optimizer, version: int) -> None:
    """Write parameters, AdamW's moments, torch's random state and the version into `folder`."""
    parameters = dict(model.named_parameters())
    save_file({name: p.detach().contiguous() for name, p in parameters.items()}, folder / MODEL)
    moments = {
        f"{name}/{moment}": optimizer.state[p][moment]
        for name, p in parameters.items()
        for moment in MOMENTS
        if p in optimizer.state
    }
    save_file({**moments, "torch_rng": torch.get_rng_state()}, folder / OPTIMIZER)
    (folder / META).write_text(json.dumps({"version": version}))


def load(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> int:
    """Read what `save` wrote, into the same parameters; returns the version."""
    try:
        weights, moments = load_file(folder / MODEL), load_file(folder / OPTIMIZER)
        version = int(json.loads((folder / META).read_text())["version"])
        random_state = moments.pop("torch_rng")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint {folder} cannot be read: {error}",
            remedy="delete that folder to continue from the one before it, or start over with --fresh",
        ) from error
    parameters = dict(model.named_parameters())
    if _shapes(parameters) != _shapes(weights):
        raise CheckpointError(
            f"checkpoint {folder} belongs to another model",
            remedy="resume with the model that the run was started with, or start over with --fresh",
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    torch.set_rng_state(random_state)
    optimizer.state.clear()
    for name, parameter in parameters.items():
        found = {moment: moments[key] for moment in MOMENTS if (key := f"{name}/{moment}") in moments}
        if found:
            optimizer.state[parameter] = found
    return version


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
