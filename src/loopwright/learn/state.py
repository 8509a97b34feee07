"""A learner's state on disk: safetensors and JSON, no pickle. A loaded learner continues bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from loopwright.errors import CheckpointError

MODEL, OPTIMIZER, META = "model.safetensors", "optimizer.safetensors", "learner.json"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save_state(
    folder: Path,
    weights: Mapping[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    version: int,
    file: str = MODEL,
) -> None:
    """Write weights, AdamW's moments, torch's random state and the version into `folder`."""
    save_file({name: weight.detach().cpu().contiguous() for name, weight in weights.items()}, folder / file)
    moments = {
        f"{name}/{moment}": optimizer.state[weight][moment].cpu()
        for name, weight in weights.items()
        for moment in MOMENTS
        if weight in optimizer.state
    }
    save_file({**moments, "torch_rng": torch.get_rng_state()}, folder / OPTIMIZER)
    (folder / META).write_text(json.dumps({"version": version}))


def load_state(
    folder: Path, weights: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, file: str = MODEL
) -> int:
    """Read what `save_state` wrote into `weights` and the optimiser, and return the version."""
    try:
        saved, moments = load_file(folder / file), load_file(folder / OPTIMIZER)
        version = int(json.loads((folder / META).read_text())["version"])
        random_state = moments.pop("torch_rng")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint {folder} cannot be read: {error}",
            remedy="delete that folder to continue from the one before it, or start over with --fresh",
        ) from error
    _check_fits(folder, weights, saved)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(saved[name])
    torch.set_rng_state(random_state)
    optimizer.state.clear()
    for name, weight in weights.items():
        # Only a fused optimiser counts its steps on the device.
        counts = weight.device if optimizer.defaults["fused"] else torch.device("cpu")
        found = {
            moment: moments[key].to(counts if moment == "step" else weight.device)
            for moment in MOMENTS
            if (key := f"{name}/{moment}") in moments
        }
        if found:
            optimizer.state[weight] = found
    return version


def _check_fits(folder: Path, weights: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor]) -> None:
    if _shapes(weights) != _shapes(saved):
        raise CheckpointError(
            f"checkpoint {folder} belongs to another model",
            remedy="resume with the model that the run was started with, or start over with --fresh",
        )
    for name, weight in weights.items():
        if saved[name].dtype != weight.dtype:
            # Converting them would continue from other weights than those that were trained.
            raise CheckpointError(
                f"checkpoint {folder} has the numbers of {name} as {_name(saved[name])}, and they are kept as "
                f"{_name(weight)}",
                remedy="go on with the Loopwright version that wrote it, or start a new run from its weights, with "
                "that folder as model.path",
            )


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
