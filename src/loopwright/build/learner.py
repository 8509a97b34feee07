"""Opens the learner of a run, at its latest checkpoint or with the initial weights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loopwright.build.standing import Standing
from loopwright.learn.learner import TorchLearner
from loopwright.ports import Learner
from loopwright.runs.checkpoint import Checkpoint


@asynccontextmanager
async def open_learner(standing: Standing, latest: Checkpoint | None) -> AsyncIterator[Learner]:
    """The learner of a run, until the block ends. Raises LearnerLostError if it is lost while it is opened."""
    sampling, recipe, compute = standing.sampling, standing.recipe, standing.sampling.compute
    learner = await compute.run(TorchLearner, sampling.model, recipe, compute, standing.adapted)
    if latest is not None:
        await learner.load(latest.path)
    yield learner
