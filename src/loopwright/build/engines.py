"""The engines of a run: in this process, on the learner's own parameters, in a process of its own, or somebody else's
that already run.

They are opened once, also if the learner is lost and opened again. So nothing here belongs to one learner, except what
`Engines.follow` makes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from loopwright.build import parts
from loopwright.build.devices import engine_devices
from loopwright.build.engine_actors import engine_actors, torch_actors
from loopwright.build.lease_holder import lease_holder
from loopwright.build.sampling import LoadedSamplingParts, LocalSamplingParts
from loopwright.build.servers import attached_launches, version_labels
from loopwright.build.vllm import vllm_launches
from loopwright.config import LoopwrightEngineConfig, SglangEngineConfig, TorchEngineConfig, VllmEngineConfig
from loopwright.config.extras import require
from loopwright.engines.controller import RolloutController
from loopwright.engines.engine_spans import EngineSpan
from loopwright.engines.http.process import engine_command, engine_process
from loopwright.engines.pool import Prove, unproven
from loopwright.engines.torch.engine import TorchEngine
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.worker import Launch, embedded
from loopwright.errors import DeviceError
from loopwright.ports import Learner, Storage, StreamingEngine, WeightPublisher
from loopwright.runs.run_folder import RunFolder
from loopwright.serve.lease import LeaseHolder
from loopwright.track.jsonl import JsonlTracker
from loopwright.weights.folder import weights_folder
from loopwright.weights.in_process import MergedAdapters, SharedWeights
from loopwright.weights.proof import WeightProof
from loopwright.weights.shared_memory import SharedMemoryWeights

if TYPE_CHECKING:
    from loopwright.learn.lora import AdaptedModel

log = logging.getLogger("loopwright")


class Followed:
    """The learner that the engines follow, for what asks about the present one: the proofs of engines, and the step at
    which one was lost. Before there is a learner, nothing is sampled, and nothing can be proven."""

    def __init__(self, journal: JsonlTracker) -> None:
        self._journal = journal
        self._prove: Prove = unproven
        self._step: Callable[[], int] = lambda: 0
        self.deaths = 0

    def change(self, learner: Learner, prove: Prove) -> None:
        self._prove, self._step = prove, lambda: learner.version

    async def prove(self, name: str, engine: StreamingEngine, version: int) -> None:
        await self._prove(name, engine, version)

    def saw_death(self, words: str) -> None:
        """Count an engine that died, and log when and with which last words."""
        self.deaths += 1
        log.warning("the engine is lost: %s", words)
        with self._journal.span("engine_lost", step=self._step(), last_words=words):
            pass

    def saw_span(self, span: EngineSpan) -> None:
        """Write what an engine did to the journal. What it samples now is for the next step."""
        step = self._step() + (span.name == "generate")
        who = f"engine {span.engine}"
        self._journal.note(
            span.name, step=step, start=span.start, seconds=span.seconds, who=who, error=span.error, **span.facts
        )


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a run behind one controller. `follow` has them follow a learner, and gives the way of its weights
    to them. `lockstep` is the engine that can run in lockstep, if there is one. `share_weights`: they compute with the
    learner's own parameters."""

    engine: RolloutController
    follow: Callable[[Learner], WeightPublisher]
    lockstep: TorchEngine | None = None
    share_weights: bool = False
    restarts: Callable[[], int] = lambda: 0


@asynccontextmanager
async def embedded_engine(
    sampling: LoadedSamplingParts, version: int, journal: JsonlTracker, adapted: AdaptedModel | None
) -> AsyncIterator[Engines]:
    """An engine on the learner's own parameters: a weight update copies nothing. If adapters are trained, the weights
    that have one are the engine's own, and the adapters are merged into them. The learner begins with weights
    `version`."""
    followed = Followed(journal)
    async with (
        sampling.embedded_engine(version) as engine,
        RolloutController.open(
            [embedded(engine, sampling.capacity, partial(end_of_embedded, engine))],
            prove=followed.prove,
            tell=followed.saw_span,
        ) as controller,
    ):

        def follow(learner: Learner) -> WeightPublisher:
            proof = _proof(sampling, learner)
            followed.change(learner, proof)
            if adapted is None:
                return SharedWeights(controller, proof)
            return MergedAdapters(learner, controller, sampling.model, adapted.base, proof)

        yield Engines(controller, follow, engine, share_weights=adapted is None)


async def end_of_embedded(engine: TorchEngine) -> NoReturn:
    """Wait until the engine's device breaks. It is the learner's too, so only a new process can go on."""
    lost = await engine.died()
    raise DeviceError(lost.message, remedy=lost.remedy)


@asynccontextmanager
async def engines_apart(
    sampling: LocalSamplingParts, folder: RunFolder, storage: Storage, journal: JsonlTracker, env: Mapping[str, str]
) -> AsyncIterator[Engines]:
    """Engines in other processes. One that dies is started again, or waited for if it is not ours. Weights go through
    shared memory."""
    followed, holder = Followed(journal), lease_holder(folder, storage)
    labels = version_labels(holder)
    with weights_folder(folder.path) as weights:
        launches = _launches(sampling, folder, holder, labels, env)
        opening = RolloutController.open(
            launches, on_death=followed.saw_death, prove=followed.prove, tell=followed.saw_span
        )
        async with opening as controller:

            def follow(learner: Learner) -> WeightPublisher:
                proof = _proof(sampling, learner)
                followed.change(learner, proof if sampling.config.rollout.engine.is_proven else unproven)
                labels.lineage = storage.lineage
                return SharedMemoryWeights(learner, controller, weights, proof)

            yield Engines(controller, follow, restarts=lambda: followed.deaths)


def _proof(sampling: LocalSamplingParts, learner: Learner) -> WeightProof:
    config = sampling.config
    return WeightProof(
        learner, sampling.model.vocabulary, temperature=config.rollout.temperature, dtype=config.model.dtype
    )


def _launches(
    sampling: LocalSamplingParts,
    folder: RunFolder,
    holder: LeaseHolder,
    labels: VersionLabels,
    env: Mapping[str, str],
) -> list[Launch]:
    match sampling.config.rollout.engine:
        case TorchEngineConfig() as engine:
            if (actors := engine_actors(sampling)) is not None:
                return torch_actors(sampling, engine, actors)
            start = partial(engine_process, env=env, log=folder.engine_log, capacity=sampling.capacity)
            return [partial(start, _command(sampling, engine, device)) for device in engine_devices(sampling.config)]
        case LoopwrightEngineConfig() as engine:
            return _attached(sampling, engine, holder)
        case VllmEngineConfig() as engine:
            return vllm_launches(sampling, engine, folder, holder, labels, env)
        case SglangEngineConfig() as engine:
            return _sglang(sampling, engine, holder, labels)


def _attached(sampling: LocalSamplingParts, engine: LoopwrightEngineConfig, holder: LeaseHolder) -> list[Launch]:
    require("serve")
    from loopwright.engines.http.client import HttpEngine

    if not engine.is_proven:
        log.warning("rollout.engine.proof is off: nobody knows which weights the engines serve")
    return attached_launches(sampling, engine, holder, HttpEngine.connect)


def _sglang(
    sampling: LocalSamplingParts, engine: SglangEngineConfig, holder: LeaseHolder, labels: VersionLabels
) -> list[Launch]:
    require("serve")
    from loopwright.engines.sglang.engine import SglangEngine

    connect = partial(SglangEngine.connect, labels=labels)
    return attached_launches(sampling, engine, holder, connect)


def _command(sampling: LocalSamplingParts, engine: TorchEngineConfig, device: str) -> list[str]:
    model = sampling.config.model
    return engine_command(
        parts.model_source(sampling.loaded, model.path),
        dtype=model.dtype,
        max_context=model.max_context,
        threads=sampling.engine_threads,
        max_batch=engine.max_batch,
        cache_tokens=engine.cache_tokens,
        native=engine.native,
        device=device,
    )
