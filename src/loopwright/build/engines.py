"""The engines of a run: in this process, on the learner's own parameters, or in a process of its own."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from loopwright.build import parts
from loopwright.build.sampling import LocalSamplingParts
from loopwright.engines.controller import RolloutController
from loopwright.engines.http.process import engine_command, engine_process
from loopwright.engines.torch.engine import TorchEngine
from loopwright.engines.worker import embedded
from loopwright.ports import Learner, Tracker, WeightPublisher
from loopwright.trainers.run_folder import RunFolder
from loopwright.weights.folder import weights_folder
from loopwright.weights.in_process import SharedWeights
from loopwright.weights.shared_memory import SharedMemoryWeights

log = logging.getLogger("loopwright")


class Deaths:
    """Counts the engines that died, and logs when and with which last words."""

    def __init__(self, learner: Learner, tracker: Tracker) -> None:
        self._learner = learner
        self._tracker = tracker
        self.count = 0

    def saw(self, words: str) -> None:
        self.count += 1
        log.warning("the engine is lost: %s", words)
        with self._tracker.span("engine_lost", step=self._learner.version, last_words=words):
            pass


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a run behind one controller, and how new weights reach them. `lockstep` is the engine that can run
    in lockstep, if there is one."""

    engine: RolloutController
    weights: WeightPublisher
    lockstep: TorchEngine | None = None
    restarts: Callable[[], int] = lambda: 0


@asynccontextmanager
async def colocated(sampling: LocalSamplingParts, learner: Learner) -> AsyncIterator[Engines]:
    """An engine on the learner's own parameters: a weight update copies nothing."""
    async with (
        sampling.embedded_engine(learner.version) as engine,
        RolloutController.open([embedded(engine)]) as controller,
    ):
        yield Engines(controller, SharedWeights(controller), engine)


@asynccontextmanager
async def disaggregated(
    sampling: LocalSamplingParts, learner: Learner, folder: RunFolder, tracker: Tracker, env: Mapping[str, str]
) -> AsyncIterator[Engines]:
    """An engine in a process of its own. It is started again when it dies. Weights go through shared memory."""
    model, engine = sampling.config.model, sampling.config.rollout.engine
    command = engine_command(
        parts.model_source(sampling.loaded, model.path),
        dtype=model.dtype,
        max_context=model.max_context,
        threads=sampling.engine_threads,
        max_batch=engine.max_batch,
        cache_tokens=engine.cache_tokens,
        native=engine.native,
    )
    deaths = Deaths(learner, tracker)
    launch = partial(engine_process, command, env=env, log=folder.engine_log)
    with weights_folder(folder.path) as weights:
        async with RolloutController.open([launch], on_death=deaths.saw) as controller:
            shared = SharedMemoryWeights(learner, controller, weights)
            yield Engines(controller, shared, restarts=lambda: deaths.count)
