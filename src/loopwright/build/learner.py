"""Opens the learner of a run, at its latest checkpoint or with the initial weights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from loopwright.build.sampling import RankedSamplingParts
from loopwright.build.standing import Standing
from loopwright.learn.learner import TorchLearner
from loopwright.ports import Learner
from loopwright.runs.checkpoint import Checkpoint


@asynccontextmanager
async def open_learner(standing: Standing, latest: Checkpoint | None) -> AsyncIterator[Learner]:
    """The learner of a run, until the block ends: in this process, or its ranks, which are started. Raises
    LearnerLostError if a rank is lost while it is opened."""
    sampling, recipe = standing.sampling, standing.recipe
    async with AsyncExitStack() as stack:
        learner: Learner
        if isinstance(sampling, RankedSamplingParts):
            learner = await stack.enter_async_context(_ranks(standing, sampling))
        else:
            compute, adapted = sampling.compute, standing.adapted
            learner = await compute.run(TorchLearner, sampling.model, recipe, compute, adapted)
        if latest is not None:
            await learner.load(latest.path)
        yield learner


def _ranks(standing: Standing, sampling: RankedSamplingParts) -> AbstractAsyncContextManager[Learner]:
    # Imported here: one process needs nothing of torch.distributed, which takes time to import.
    from loopwright.build.ranks import open_ranked_learner

    return open_ranked_learner(
        sampling.loaded,
        sampling.model,
        standing.recipe,
        sampling.compute,
        cache=sampling.cache,
        folder=standing.folder,
        env=standing.settings.env,
        cluster=sampling.cluster,
        journal=standing.journal,
    )
