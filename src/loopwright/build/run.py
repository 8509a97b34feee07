"""Opens a run: a new one, or the one in its folder, from its latest checkpoint."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from loopwright.buffer.replay import StoredBuffer
from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.build import parts
from loopwright.build.cluster import open_run_cluster
from loopwright.build.door import open_door, told_in
from loopwright.build.engines import Engines, embedded_engine, engines_apart
from loopwright.build.followers import open_followers
from loopwright.build.gateway import RunSessions, gateway_elsewhere, run_model_of
from loopwright.build.lease_holder import lease_holder, unfinished_groups
from loopwright.build.page import open_run_page
from loopwright.build.recipe import Ingredients, load_ingredients, make_driver_recipe, make_recipe
from loopwright.build.relay import dialled_door
from loopwright.build.running import Run, RunOpening
from loopwright.build.sampling import (
    LoadedSamplingParts,
    LocalSamplingParts,
    RankedSamplingParts,
    open_local_sampling_parts,
    open_ranked_sampling_parts,
)
from loopwright.build.training import ResumeState, RunLearner, RunParts, make_trainer
from loopwright.config import DoorConfig, Loaded, RunConfig
from loopwright.core.redaction import Redactor
from loopwright.engines.http.model_card import ModelCard
from loopwright.learn.learner import TorchLearner
from loopwright.learn.ranks.learner import RankedLearner
from loopwright.learn.recipe import Recipe
from loopwright.ports import Storage, StreamingEngine, Tracker
from loopwright.runs.checkpoint import Checkpoint, Checkpoints
from loopwright.runs.run_folder import RunFolder
from loopwright.track.console import Console
from loopwright.track.fanout import Trackers
from loopwright.track.jsonl import JsonlTracker, read_jsonl
from loopwright.track.redacting import redacting, redactor_of
from loopwright.track.tensorboard import TensorboardTracker
from loopwright.types import BufferKind

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster
    from loopwright.gateway.remote_policy import RemoteSessionPolicies


SamplingOfRun = LoadedSamplingParts | RankedSamplingParts


def open_run(
    loaded: Loaded,
    *,
    cache: Path,
    stop: asyncio.Event,
    fresh: bool = False,
    allow_config_change: bool = False,
    console: Console | None = None,
    env: Mapping[str, str] | None = None,
) -> RunOpening:
    """Open the run that a config describes. Setting `stop` ends its training after a checkpoint.

    `cache` is where converted models are kept. `env` is the environment; processes that the run starts see the part of
    it that holds no secrets. The run folder is opened after the user's code and the model, so that a mistake in them
    does no harm to an earlier run in that folder.
    """
    # Absolute: a program may change its current folder while the run is open.
    path = Path(loaded.config.trainer.run_dir).absolute()
    return RunOpening(partial(_open, loaded, path, cache, stop, fresh, allow_config_change, console, env or {}))


async def _open(
    loaded: Loaded,
    path: Path,
    cache: Path,
    stop: asyncio.Event,
    fresh: bool,
    allow_config_change: bool,
    console: Console | None,
    env: Mapping[str, str],
) -> Run:
    config, snapshot = loaded.config, loaded.config.model_dump(mode="json")
    redact = redactor_of(loaded)
    async with AsyncExitStack() as stack:
        stack.enter_context(redacting(redact))
        ingredients = load_ingredients(loaded)
        cluster = await stack.enter_async_context(open_run_cluster(loaded, path))
        sampling, recipe = await _model_and_recipe(loaded, ingredients, cache, cluster, stack)
        folder = stack.enter_context(
            RunFolder.open(path, snapshot, fresh=fresh, allow_config_change=allow_config_change)
        )
        # A process that was killed may have left it, and this one may have no cluster.
        folder.ray.unlink(missing_ok=True)
        if cluster is not None:
            stack.enter_context(cluster.kept_in(folder.actors, folder.ray, redact))
        storage = await stack.enter_async_context(_storage(config, folder))
        resume_state = await _resume(config, folder, storage)
        learner = await stack.enter_async_context(_learner(sampling, recipe, folder, resume_state.latest, env))
        folder.adopt(snapshot, loaded.base)
        tracker = _tracker(config, folder, learner.version, console, redact)
        await stack.enter_async_context(open_followers(loaded, folder, env))
        await stack.enter_async_context(open_run_page(config, folder, console, env))
        run_parts = RunParts(sampling, folder, storage, resume_state, learner, tracker)
        engines = await stack.enter_async_context(_engines(run_parts, env))
        elsewhere = reached = brought = None
        card = ModelCard(parts.model_source(loaded, config.model.path), sampling.model.max_context)
        if (wanted := _door_config(sampling)) is not None:
            door = await stack.enter_async_context(open_door(wanted, engines.engine, card))
            stack.enter_context(told_in(folder, door))
            reached = brought = run_model_of(config, sampling.model, door.address)
        if sampling.is_served and config.gateway.relay:
            url, key = gateway_elsewhere(loaded)
            dialled = dialled_door(url, key, engines.engine, card, lease_holder(folder))
            brought = run_model_of(config, sampling.model, await stack.enter_async_context(dialled))
        if brought is not None:
            unfinished, held = unfinished_groups(folder, resume_state.plans), engines.engine.held_seconds
            sessions = RunSessions(loaded, brought, lease_holder(folder), unfinished, held, redact)
            elsewhere = _sessions_over_http(sampling, sessions, engines.engine)
        concurrency = sampling.concurrency(engines.engine.capacities)
        if console is not None:
            stack.enter_context(console)
            console.say(f"training in {learner.describes}")
            if config.rollout.concurrency == "auto":
                console.say(
                    f"rollout.concurrency: {concurrency} rollouts at a time, which is what the engines can hold"
                )
        runner = await stack.enter_async_context(
            sampling.runner(
                engines.engine,
                engines.lockstep,
                engines.engine.held_seconds,
                redact=redact,
                concurrency=concurrency,
                elsewhere=elsewhere,
                reached=reached,
            )
        )
        on_rollout = console.on_rollout if console else None
        trainer, manager = make_trainer(run_parts, engines, runner, stop=stop, on_rollout=on_rollout)
        stack.push_async_callback(manager.shutdown)
        stack.enter_context(_out_of_the_collectors_way())
        run = Run(folder, config, learner, trainer, tracker, sampling, runner, engines.engine, stop, redact)
        stack.push_async_callback(run.leave)
        return run.closed_by(stack.pop_all())


@contextmanager
def _out_of_the_collectors_way() -> Iterator[None]:
    """A full garbage collection every few steps stalled the event loop; freeze what lives as long as the run."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _sessions_over_http(
    sampling: LocalSamplingParts, sessions: RunSessions, engine: StreamingEngine
) -> AbstractAsyncContextManager[RemoteSessionPolicies] | None:
    """The sessions of agents behind a gateway, if that or some of these agents are elsewhere."""
    if not sampling.is_served:
        return None
    if sampling.config.gateway.url is not None:
        return sessions.elsewhere()
    if sampling.cluster is not None and sampling.config.gateway.num_actors:
        from loopwright.build.hosted_gateway import sessions_on_actor

        return sessions_on_actor(sessions, sampling.cluster)
    if sampling.cluster is not None and any(placed.served for placed in sampling.crews.values()):
        return sessions.here(engine, sampling.model, sampling.cluster.address)
    return None


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


def _storage(config: RunConfig, folder: RunFolder) -> AbstractAsyncContextManager[Storage]:
    return nullcontext(MemoryStorage()) if _forgets(config) else SqliteStorage(folder.rollouts)


def _forgets(config: RunConfig) -> bool:
    return config.buffer.kind is BufferKind.MEMORY


def _engines(run_parts: RunParts, env: Mapping[str, str]) -> AbstractAsyncContextManager[Engines]:
    sampling, learner = run_parts.sampling, run_parts.learner
    is_embedded = sampling.config.rollout.engine.processes(sampling.config.trainer.kind) == 0
    if is_embedded and isinstance(sampling, LoadedSamplingParts):
        return embedded_engine(sampling, learner)
    return engines_apart(sampling, learner, run_parts.folder, run_parts.tracker, env)


async def _resume(config: RunConfig, folder: RunFolder, storage: Storage) -> ResumeState:
    """Find the latest checkpoint and bring the ledger back to it (D1, D3)."""
    checkpoints = Checkpoints(folder.checkpoints, config.trainer.keep_checkpoints)
    checkpoints.clear_unfinished()
    latest = checkpoints.latest()
    step = latest.step if latest else 0
    names = [task_set.name for task_set in config.task_sets]
    drawn = latest.state["next_draws"] if latest else {}
    # Without a ledger, or if everything after the checkpoint is made again, the checkpoint has the next draws.
    from_checkpoint = config.trainer.deterministic or _forgets(config)
    next_draws = {name: drawn.get(name, 0) for name in names} if from_checkpoint else None
    policy = parts.stale_policy(config)
    buffer, plans = await StoredBuffer.resume(storage, policy, names, step=step, next_draws=next_draws)
    return ResumeState(checkpoints, latest, buffer, plans)


async def _model_and_recipe(
    loaded: Loaded, ingredients: Ingredients, cache: Path, cluster: Cluster | None, stack: AsyncExitStack
) -> tuple[SamplingOfRun, Recipe]:
    """The model, or what this process must know of it if ranks train it, and what the learner does with it."""
    if loaded.config.learner.ranks > 1:
        outlined = await stack.enter_async_context(open_ranked_sampling_parts(loaded, cache, cluster))
        return outlined, make_driver_recipe(loaded, ingredients, outlined.model)
    sampling = await stack.enter_async_context(open_local_sampling_parts(loaded, cache, cluster))
    return sampling, await sampling.compute.run(make_recipe, loaded, ingredients, sampling.model, cache)


@asynccontextmanager
async def _learner(
    sampling: SamplingOfRun,
    recipe: Recipe,
    folder: RunFolder,
    latest: Checkpoint | None,
    env: Mapping[str, str],
) -> AsyncIterator[RunLearner]:
    async with AsyncExitStack() as stack:
        learner: RunLearner
        if isinstance(sampling, RankedSamplingParts):
            learner = await stack.enter_async_context(_ranked_learner(sampling, recipe, folder, env))
        else:
            learner = await sampling.compute.run(TorchLearner, sampling.model, recipe, sampling.compute)
        if latest is not None:
            await learner.load(latest.path)
        sampling.model.tokenizer.save_pretrained(folder.tokenizer)
        yield learner


def _ranked_learner(
    sampling: RankedSamplingParts, recipe: Recipe, folder: RunFolder, env: Mapping[str, str]
) -> AbstractAsyncContextManager[RankedLearner]:
    # Imported here: one process needs nothing of torch.distributed, which takes time to import.
    from loopwright.build.ranks import open_ranked_learner

    loaded, compute, cache = sampling.loaded, sampling.compute, sampling.cache
    return open_ranked_learner(loaded, sampling.model, recipe, compute, cache=cache, folder=folder, env=env)


def _tracker(config: RunConfig, folder: RunFolder, step: int, console: Console | None, redact: Redactor) -> Tracker:
    jsonl = JsonlTracker(folder.path, redact)
    jsonl.rewind(step)
    trackers: list[Tracker] = [jsonl]
    if config.track.tensorboard:
        trackers.append(TensorboardTracker(folder.tensorboard, read_jsonl(folder.metrics)))
    return Trackers(*trackers, *([console] if console else []))
