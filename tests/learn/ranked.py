"""Learners of one and of two processes from the same config, and what they have learned."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from loopwright.build.lora import adapted_model
from loopwright.build.parts import make_outline
from loopwright.build.ranks import open_ranked_learner
from loopwright.build.recipe import load_ingredients, make_driver_recipe, make_recipe
from loopwright.config import Loaded
from loopwright.config.loading import load_from_python
from loopwright.learn.learner import TorchLearner
from loopwright.learn.ranks.learner import RankedLearner
from loopwright.learn.sharded_moments import read_moments
from loopwright.models.compute import ComputeThread
from loopwright.models.load import load_model
from loopwright.runs.run_folder import RunFolder
from loopwright.track.jsonl import JsonlTracker

PROBE = (5, 9, 17, 33, 2, 250, 7)


def config_of(model: Path, folder: Path, *, ranks: int, dtype: str = "float32", **learner: Any) -> Loaded:
    (folder / "tasks.jsonl").write_text("")
    values = {
        "model": {"path": str(model), "dtype": dtype, "device": "cpu", "threads": 1},
        "data": {"kind": "jsonl", "path": str(folder / "tasks.jsonl")},
        "agent": {"kind": "single_turn", "judger": "integer_answer"},
        "rollout": {"engine": {"num_engines": 1}},
        "trainer": {"run_dir": str(folder / "run"), "steps": 10, "stall_seconds": learner.pop("stall_seconds", 120)},
        "learner": {"lr": 1e-3, "ranks": ranks, **learner},
    }
    return load_from_python(values, base=folder)


@asynccontextmanager
async def one_process(loaded: Loaded, cache: Path, *, by_hand: bool = True) -> AsyncIterator[TorchLearner]:
    """One process, which computes by hand-written layers if it can and if `by_hand`."""
    config = loaded.config
    with ComputeThread() as compute:
        model = load_model(config.model.path, cache=cache, dtype=config.model.dtype)
        if not by_hand:
            model = replace(model, parts=None)
        adapted = adapted_model(config, model)
        recipe = make_recipe(loaded, load_ingredients(loaded), model, cache, adapted)
        yield await compute.run(TorchLearner, model, recipe, compute, adapted)


@asynccontextmanager
async def one_process_by_modules(loaded: Loaded, cache: Path) -> AsyncIterator[TorchLearner]:
    """One process that computes by the model's own modules, as ranks do."""
    async with one_process(loaded, cache, by_hand=False) as learner:
        yield learner


@asynccontextmanager
async def several_ranks(loaded: Loaded, cache: Path) -> AsyncIterator[RankedLearner]:
    with ComputeThread() as compute:
        outline = make_outline(loaded, cache)
        recipe = make_driver_recipe(loaded, load_ingredients(loaded), outline)
        folder = RunFolder(Path(loaded.config.trainer.run_dir))
        opening = open_ranked_learner(
            loaded,
            outline,
            recipe,
            compute,
            cache=cache,
            folder=folder,
            env=os.environ,
            cluster=None,
            journal=JsonlTracker(folder.path),
        )
        async with opening as learner:
            yield learner


def saved_gradients(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The gradients of the only step before this checkpoint, as AdamW has kept them: a tenth of each."""
    return {
        name.removesuffix("/exp_avg"): 10 * one for name, one in moments_in(checkpoint).items() if "_sq" not in name
    }


def moments_in(checkpoint: Path) -> dict[str, torch.Tensor]:
    if (checkpoint / "optimizer").is_dir():
        (file,) = checkpoint.glob("*model.safetensors")
        weights = load_file(file)
        return read_moments(checkpoint / "optimizer", weights, alone=True)
    stored = load_file(checkpoint / "optimizer.safetensors")
    return {name: tensor for name, tensor in stored.items() if name.endswith(("/exp_avg", "/exp_avg_sq"))}


def apart(mine: torch.Tensor, other: torch.Tensor) -> float:
    """How far apart two tensors are, in parts of the norm of one."""
    return float((mine - other).norm() / other.norm().clamp(min=1e-30))
