"""Opens the learner of a run, at its latest checkpoint or with the initial weights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from loopwright.build.sampling import LocalSamplingParts
from loopwright.learn.learner import TorchLearner
from loopwright.learn.recipe import Recipe
from loopwright.ports import Learner
from loopwright.runs.checkpoint import Checkpoint

if TYPE_CHECKING:
    from loopwright.learn.lora import AdaptedModel


@asynccontextmanager
async def open_learner(
    sampling: LocalSamplingParts, recipe: Recipe, latest: Checkpoint | None, adapted: AdaptedModel | None
) -> AsyncIterator[Learner]:
    """The learner of a run, until the block ends. It trains all weights, or those of `adapted`."""
    learner = await sampling.compute.run(TorchLearner, sampling.model, recipe, sampling.compute, adapted)
    if latest is not None:
        await learner.load(latest.path)
    yield learner
