"""A learner's state on disk: safetensors and JSON, no pickle. A loaded learner continues bit for bit. The state
may be that of one process, or of several ranks (`learn.ranks.state`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from loopwright.errors import CheckpointError

MODEL, OPTIMIZER, META = "model.safetensors", "optimizer.safetensors", "learner.json"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
SHARDED = "optimizer"
"""The folder that a checkpoint of ranks has in place of `OPTIMIZER`."""
RANDOM = "torch_rng"
"""The name of torch's random state among tensors."""


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
    save_file({**moments, RANDOM: torch.get_rng_state()}, folder / OPTIMIZER)
    (folder / META).write_text(json.dumps({"version": version}))


def describe_model(model: Any, folder: Path) -> None:
    """Write what makes a folder with the weights of a model one that transformers can load."""
    model.config.save_pretrained(folder)
    if model.can_generate():
        # Not by its own save_pretrained, which refuses what some models come with.
        model.generation_config.to_json_file(folder / GENERATION_CONFIG_NAME)


def save_model(model: Any, folder: Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write a model as its `save_pretrained` does, with these weights instead of its own if they are given."""
    own = getattr(model, "generation_config", None)
    try:
        # save_pretrained checks it, and refuses what some models come with. `describe_model` writes it as it is.
        model.generation_config = GenerationConfig()
        model.save_pretrained(folder, state_dict=weights)
    finally:
        model.generation_config = own
    describe_model(model, folder)


def load_state(
    folder: Path, weights: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, file: str = MODEL
) -> int:
    """Read what `save_state` wrote into `weights` and the optimiser, and return the version."""
    with while_read(folder):
        saved = load_file(folder / file)
        about = json.loads((folder / META).read_text())
        version = int(about["version"])
        _check_fits(folder, weights, saved)
        moments, random_state = _of_ranks(folder, weights, about) if is_sharded(folder) else _of_one(folder)
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


@contextmanager
def while_read(folder: Path) -> Iterator[None]:
    """While a checkpoint is read: what is missing or damaged is a CheckpointError."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint {folder} cannot be read: {error}",
            remedy="delete that folder to continue from the one before it, or start over with --fresh",
        ) from error


@contextmanager
def while_written(folder: Path) -> Iterator[None]:
    """While a folder is filled: a full disk, and whatever else the disk refuses, is a CheckpointError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} could not be written: {error}",
            remedy="free some disk space there; earlier checkpoints are intact, and the same command goes on from the "
            "newest",
        ) from error


def is_sharded(folder: Path) -> bool:
    """Whether ranks have written the checkpoint."""
    return (folder / SHARDED).is_dir()


def random_file(folder: Path, rank: int) -> Path:
    """Where a rank has its random state."""
    return folder / f"random-{rank}.safetensors"


def random_state_in(file: Path) -> torch.Tensor:
    with safe_open(file, "pt") as opened:
        found: torch.Tensor = opened.get_tensor(RANDOM)
        return found


def _of_one(folder: Path) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    moments = load_file(folder / OPTIMIZER)
    return moments, moments.pop(RANDOM)


def _of_ranks(
    folder: Path, weights: Mapping[str, torch.Tensor], about: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    # Few need it, and importing it takes time.
    from loopwright.learn.sharded_moments import read_moments

    moments = read_moments(folder / SHARDED, weights, alone=True)
    steps = {f"{name}/step": torch.tensor(float(count)) for name, count in about["steps"].items()}
    return moments | steps, random_state_in(random_file(folder, 0))


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
