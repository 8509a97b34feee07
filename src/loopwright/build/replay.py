"""Replays a train step of a run with its learner as it was before that step, without engine, tasks and judgers."""

from __future__ import annotations

from pathlib import Path

from loopwright.build import parts
from loopwright.build.lora import adapted_model
from loopwright.build.recipe import load_ingredients, make_recipe
from loopwright.config import Loaded
from loopwright.config.model_folders import is_adapter
from loopwright.errors import ModelError
from loopwright.learn.learner import TorchLearner
from loopwright.models.adapter_base import while_base_is_read
from loopwright.models.adapter_files import read_adapter
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.runs.checkpoint import Checkpoint, Checkpoints
from loopwright.runs.replay import RecordedSteps, Replay, replay
from loopwright.runs.run_folder import RunFolder


async def replay_step(loaded: Loaded, folder: RunFolder, step: int, *, cache: Path) -> Replay:
    """Do train step `step` of the run in `folder` again, and compare the numbers. Nothing in the folder changes.

    It begins at the newest checkpoint before that step, or at the model that the run began with, and does the steps in
    between as well. `cache` is where converted models are kept.
    """
    recorded = RecordedSteps(folder)
    recorded.numbers(step)
    checkpoints = Checkpoints(folder.checkpoints, loaded.config.trainer.keep_checkpoints)
    start, ingredients = checkpoints.newest(before=step), load_ingredients(loaded)
    with ComputeThread() as compute:
        if loaded.config.learner.lora and start is not None and is_adapter(start.path):
            model = await compute.run(_base_of, start, loaded, cache)
        else:
            model = await compute.run(_model, loaded, start, _elsewhere(recorded, checkpoints), cache)
        adapted = await compute.run(adapted_model, loaded.config, model)
        recipe = await compute.run(make_recipe, loaded, ingredients, model, cache, adapted)
        learner = await compute.run(TorchLearner, model, recipe, compute, adapted)
        if start is not None:
            await learner.load(start.path)
        return await replay(learner, recorded, step, exact=loaded.config.trainer.deterministic)


def _model(loaded: Loaded, start: Checkpoint | None, elsewhere: str, cache: Path) -> LoadedModel:
    """Load the model of the checkpoint, or else the run's initial model, which may be gone by now."""
    if start is not None:
        return parts.make_model(loaded, cache, str(start.path.resolve()))
    try:
        return parts.make_model(loaded, cache)
    except ModelError as error:
        raise ModelError(
            f"no checkpoint is that old, and the model that the run began with cannot be loaded: {error.message}",
            remedy=f"bring it back, or replay one of the steps that follow a checkpoint: {elsewhere}",
        ) from error


def _base_of(start: Checkpoint, loaded: Loaded, cache: Path) -> LoadedModel:
    """Load the model beside which the adapters of the checkpoint were trained. It is the one that the run began with,
    and if that has moved, the checkpoint is where its place can be changed."""
    adapter = read_adapter(str(start.path.resolve()))
    with while_base_is_read(adapter.base, [adapter]):
        # A name, and a folder of a cache that is gone, are found by what the config says.
        return parts.make_model(loaded, cache, adapter.base if Path(adapter.base).is_dir() else None)


def _elsewhere(recorded: RecordedSteps, checkpoints: Checkpoints) -> str:
    """The steps that can be replayed from a checkpoint, as text."""
    steps = checkpoints.steps()
    return (recorded.after(steps[0]) if steps else "") or "there are none"
