"""The engines of a run: in this process, on the learner's own parameters, in a process of its own, or somebody else's
that already run."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from loopwright.build import parts
from loopwright.build.engine_actors import engine_actors, torch_actors
from loopwright.build.sampling import LoadedSamplingParts, LocalSamplingParts
from loopwright.build.servers import attached_launches, version_labels
from loopwright.build.vllm import vllm_launches
from loopwright.config import LoopwrightEngineConfig, SglangEngineConfig, TorchEngineConfig, VllmEngineConfig
from loopwright.config.extras import require
from loopwright.engines.controller import RolloutController
from loopwright.engines.http.process import engine_command, engine_process
from loopwright.engines.pool import Prove, unproven
from loopwright.engines.torch.engine import TorchEngine
from loopwright.engines.worker import Launch, embedded
from loopwright.ports import Learner, Tracker, WeightPublisher
from loopwright.runs.run_folder import RunFolder
from loopwright.types import TrainerKind
from loopwright.weights.folder import weights_folder
from loopwright.weights.in_process import SharedWeights
from loopwright.weights.proof import WeightProof
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
async def embedded_engine(sampling: LoadedSamplingParts, learner: Learner) -> AsyncIterator[Engines]:
    """An engine on the learner's own parameters: a weight update copies nothing."""
    proof = _proof(sampling, learner)
    async with (
        sampling.embedded_engine(learner.version) as engine,
        RolloutController.open([embedded(engine, sampling.capacity)], prove=proof) as controller,
    ):
        yield Engines(controller, SharedWeights(controller, proof), engine)


@asynccontextmanager
async def engines_apart(
    sampling: LocalSamplingParts, learner: Learner, folder: RunFolder, tracker: Tracker, env: Mapping[str, str]
) -> AsyncIterator[Engines]:
    """Engines in other processes. One that dies is started again, or waited for if it is not ours. Weights go through
    shared memory."""
    deaths, proof = Deaths(learner, tracker), _proof(sampling, learner)
    prove: Prove = proof if sampling.config.rollout.engine.is_proven else unproven
    with weights_folder(folder.path) as weights:
        launches = _launches(sampling, folder, env)
        async with RolloutController.open(launches, on_death=deaths.saw, prove=prove) as controller:
            shared = SharedMemoryWeights(learner, controller, weights, proof)
            if sampling.config.trainer.kind is TrainerKind.COLOCATE:
                # A colocated trainer publishes after it has trained. The engines may have been started with others.
                await shared.publish(learner.version)
            yield Engines(controller, shared, restarts=lambda: deaths.count)


def _proof(sampling: LocalSamplingParts, learner: Learner) -> WeightProof:
    config = sampling.config
    return WeightProof(
        learner, sampling.model.vocabulary, temperature=config.rollout.temperature, dtype=config.model.dtype
    )


def _launches(sampling: LocalSamplingParts, folder: RunFolder, env: Mapping[str, str]) -> list[Launch]:
    match sampling.config.rollout.engine:
        case TorchEngineConfig() as engine:
            if (actors := engine_actors(sampling)) is not None:
                return torch_actors(sampling, engine, actors)
            command, count = _command(sampling, engine), engine.processes(sampling.config.trainer.kind)
            capacity = sampling.capacity
            return [partial(engine_process, command, env=env, log=folder.engine_log, capacity=capacity)] * count
        case LoopwrightEngineConfig() as engine:
            return _attached(sampling, engine, folder)
        case VllmEngineConfig() as engine:
            return vllm_launches(sampling, engine, folder, env)
        case SglangEngineConfig() as engine:
            return _sglang(sampling, engine, folder)


def _attached(sampling: LocalSamplingParts, engine: LoopwrightEngineConfig, folder: RunFolder) -> list[Launch]:
    require("serve")
    from loopwright.engines.http.client import HttpEngine

    if not engine.is_proven:
        log.warning("rollout.engine.proof is off: nobody knows which weights the engines serve")
    return attached_launches(sampling, engine, folder, HttpEngine.connect)


def _sglang(sampling: LocalSamplingParts, engine: SglangEngineConfig, folder: RunFolder) -> list[Launch]:
    require("serve")
    from loopwright.engines.sglang.engine import SglangEngine

    connect = partial(SglangEngine.connect, labels=version_labels(folder))
    return attached_launches(sampling, engine, folder, connect)


def _command(sampling: LocalSamplingParts, engine: TorchEngineConfig) -> list[str]:
    model = sampling.config.model
    return engine_command(
        parts.model_source(sampling.loaded, model.path),
        dtype=model.dtype,
        max_context=model.max_context,
        threads=sampling.engine_threads,
        max_batch=engine.max_batch,
        cache_tokens=engine.cache_tokens,
        native=engine.native,
        device=parts.engine_device(sampling.config),
    )
