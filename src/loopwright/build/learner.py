"""Opens the learner of a run, at its latest checkpoint or with the initial weights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from loopwright.build.sampling import RankedSamplingParts, SamplingOfRun
from loopwright.learn.learner import TorchLearner
from loopwright.learn.recipe import Recipe
from loopwright.ports import Learner
from loopwright.runs.checkpoint import Checkpoint
from loopwright.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from loopwright.learn.lora import AdaptedModel


@asynccontextmanager
async def open_learner(
    sampling: SamplingOfRun,
    recipe: Recipe,
    latest: Checkpoint | None,
    adapted: AdaptedModel | None,
    *,
    folder: RunFolder,
    env: Mapping[str, str],
) -> AsyncIterator[Learner]:
    """The learner of a run, until the block ends: in this process, or its ranks, which are started. It trains all
    weights, or those of `adapted`."""
    async with AsyncExitStack() as stack:
        learner: Learner
        if isinstance(sampling, RankedSamplingParts):
            learner = await stack.enter_async_context(_ranks(sampling, recipe, folder, env))
        else:
            learner = await sampling.compute.run(TorchLearner, sampling.model, recipe, sampling.compute, adapted)
        if latest is not None:
            await learner.load(latest.path)
        yield learner


def _ranks(
    sampling: RankedSamplingParts, recipe: Recipe, folder: RunFolder, env: Mapping[str, str]
) -> AbstractAsyncContextManager[Learner]:
    # Imported here: one process needs nothing of torch.distributed, which takes time to import.
    from loopwright.build.ranks import open_ranked_learner

    loaded, compute, cache = sampling.loaded, sampling.compute, sampling.cache
    return open_ranked_learner(loaded, sampling.model, recipe, compute, cache=cache, folder=folder, env=env)
