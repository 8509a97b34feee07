"""Opens what of a run outlives its learner: the user's code, the folder and its database, and the engines with what
leads to them. What a lost learner takes along is in `build/lineage.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.build import parts
from loopwright.build.cluster import open_run_cluster
from loopwright.build.door import open_door, told_in
from loopwright.build.ending import RunEnding, told_ending
from loopwright.build.engines import Engines, embedded_engine, engines_apart
from loopwright.build.gateway import gateway_elsewhere, run_model_of
from loopwright.build.lease_holder import lease_holder
from loopwright.build.lora import adapted_model
from loopwright.build.page import open_run_page
from loopwright.build.recipe import Ingredients, load_ingredients, make_driver_recipe, make_recipe
from loopwright.build.relay import dialled_door
from loopwright.build.sampling import (
    LoadedSamplingParts,
    LocalSamplingParts,
    SamplingOfRun,
    open_local_sampling_parts,
    open_ranked_sampling_parts,
)
from loopwright.config import DoorConfig, Loaded, RunConfig
from loopwright.core.redaction import Redactor
from loopwright.engines.http.model_card import ModelCard
from loopwright.learn.recipe import Recipe
from loopwright.ports import Storage
from loopwright.runs.checkpoint import Checkpoints
from loopwright.runs.run_folder import RunFolder
from loopwright.track.console import Console
from loopwright.track.jsonl import JsonlTracker
from loopwright.track.redacting import redacting, redactor_of
from loopwright.types import BufferKind

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster
    from loopwright.gateway.registration import RunModel
    from loopwright.learn.lora import AdaptedModel


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run is opened: its config, and what the caller of `open_run` says besides."""

    loaded: Loaded
    path: Path
    cache: Path
    stop: asyncio.Event
    fresh: bool
    allow_config_change: bool
    console: Console | None
    env: Mapping[str, str]
    snapshot: Mapping[str, Any]
    """The config as the run folder keeps it."""

    @property
    def config(self) -> RunConfig:
        return self.loaded.config


@dataclass(frozen=True, slots=True)
class Standing:
    """What of a run outlives its learner. Other processes reach its engines as `reached` says, and those that a gateway
    elsewhere serves as `brought` says."""

    settings: RunSettings
    redact: Redactor
    sampling: SamplingOfRun
    adapted: AdaptedModel | None
    """What the learner trains, if that is adapters."""
    recipe: Recipe
    folder: RunFolder
    storage: Storage
    journal: JsonlTracker
    """The metrics and events of the run folder."""
    engines: Engines
    reached: RunModel | None
    brought: RunModel | None
    ending: RunEnding

    @property
    def config(self) -> RunConfig:
        return self.settings.config


@asynccontextmanager
async def open_standing(settings: RunSettings) -> AsyncIterator[Standing]:
    """The run folder is opened after the user's code and the model, so that a mistake in them does no harm to an
    earlier run in that folder."""
    loaded, config, console = settings.loaded, settings.config, settings.console
    redact = redactor_of(loaded)
    async with AsyncExitStack() as stack:
        stack.enter_context(redacting(redact))
        ingredients = load_ingredients(loaded)
        cluster = await stack.enter_async_context(open_run_cluster(loaded, settings.path))
        sampling, adapted, recipe = await _model(loaded, settings.cache, cluster, ingredients, stack)
        folder = stack.enter_context(_folder(settings))
        ending = stack.enter_context(told_ending(folder, redact))
        # A process that was killed may have left it, and this one may have no cluster.
        folder.ray.unlink(missing_ok=True)
        if cluster is not None:
            stack.enter_context(cluster.kept_in(folder.actors, folder.ray, redact))
        storage = await stack.enter_async_context(_storage(config, folder))
        journal = JsonlTracker(folder.path, redact)
        await stack.enter_async_context(open_run_page(config, folder, console, settings.env))
        opening = _engines(sampling, adapted, folder, storage, journal, settings.env)
        engines = await stack.enter_async_context(opening)
        reached, brought = await _doors(loaded, sampling, engines, folder, storage, stack)
        if console is not None:
            stack.enter_context(console)
        yield Standing(
            settings, redact, sampling, adapted, recipe, folder, storage, journal, engines, reached, brought, ending
        )


async def _model(
    loaded: Loaded, cache: Path, cluster: Cluster | None, ingredients: Ingredients, stack: AsyncExitStack
) -> tuple[SamplingOfRun, AdaptedModel | None, Recipe]:
    """The model with its adapters, or what this process must know of it if ranks train it; and what is optimised."""
    if loaded.config.learner.ranks > 1:
        outlined = await stack.enter_async_context(open_ranked_sampling_parts(loaded, cache, cluster))
        return outlined, None, make_driver_recipe(loaded, ingredients, outlined.model)
    sampling = await stack.enter_async_context(open_local_sampling_parts(loaded, cache, cluster))
    adapted = await sampling.compute.run(adapted_model, loaded.config, sampling.model)
    recipe = await sampling.compute.run(make_recipe, loaded, ingredients, sampling.model, cache, adapted)
    return sampling, adapted, recipe


def _folder(settings: RunSettings) -> AbstractContextManager[RunFolder]:
    return RunFolder.open(
        settings.path,
        settings.snapshot,
        fresh=settings.fresh,
        allow_config_change=settings.allow_config_change,
    )


def forgets(config: RunConfig) -> bool:
    """Whether the rollouts of the run end with its process."""
    return config.buffer.kind is BufferKind.MEMORY


def _storage(config: RunConfig, folder: RunFolder) -> AbstractAsyncContextManager[Storage]:
    return nullcontext(MemoryStorage()) if forgets(config) else SqliteStorage(folder.rollouts)


def checkpoints_of(config: RunConfig, folder: RunFolder) -> Checkpoints:
    return Checkpoints(folder.checkpoints, config.trainer.keep_checkpoints)


def _engines(
    sampling: SamplingOfRun,
    adapted: AdaptedModel | None,
    folder: RunFolder,
    storage: Storage,
    journal: JsonlTracker,
    env: Mapping[str, str],
) -> AbstractAsyncContextManager[Engines]:
    config = sampling.config
    is_embedded = config.rollout.engine.processes(config.trainer.kind) == 0
    if is_embedded and isinstance(sampling, LoadedSamplingParts):
        latest = checkpoints_of(config, folder).latest()
        return embedded_engine(sampling, latest.step if latest else 0, journal, adapted)
    return engines_apart(sampling, folder, storage, journal, env)


async def _doors(
    loaded: Loaded,
    sampling: LocalSamplingParts,
    engines: Engines,
    folder: RunFolder,
    storage: Storage,
    stack: AsyncExitStack,
) -> tuple[RunModel | None, RunModel | None]:
    """Open the ways to the engines from outside of this process. Gives the model as other processes of the run reach
    it, and as a gateway elsewhere does."""
    config, model, controller = loaded.config, sampling.model, engines.engine
    reached = brought = None
    card = ModelCard(parts.model_source(loaded, config.model.path), model.max_context)
    if (wanted := _door_config(sampling)) is not None:
        door = await stack.enter_async_context(open_door(wanted, controller, card))
        stack.enter_context(told_in(folder, door))
        reached = brought = run_model_of(config, model, door.address)
    if sampling.is_served and config.gateway.relay:
        url, key = gateway_elsewhere(loaded)
        dialled = dialled_door(url, key, controller, card, lease_holder(folder, storage))
        brought = run_model_of(config, model, await stack.enter_async_context(dialled))
    return reached, brought


def _door_config(sampling: LocalSamplingParts) -> DoorConfig | None:
    """Where the run has a door that listens, if it has one. Agents on actors need one, and so does a gateway elsewhere
    that the run does not dial."""
    config, cluster = sampling.config, sampling.cluster
    if config.rollout.door is not None:
        return config.rollout.door
    if cluster is not None and (sampling.crews or (sampling.is_served and config.gateway.num_actors)):
        return DoorConfig(host=cluster.address)
    has_gateway = config.gateway.url is not None and not config.gateway.relay
    return DoorConfig() if sampling.is_served and has_gateway else None
