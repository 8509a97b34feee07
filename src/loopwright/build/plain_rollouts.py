"""Rollouts and rewards without a trainer.

Groups are made in batches by the same code as for train steps: every finished rollout is stored at once, failures
follow the same rules, and a session that was stopped goes on where it was. A batch is stored as a train step is, and
the weights always have version 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from loopwright.buffer.replay import StoredBuffer
from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.build import parts
from loopwright.build.remote import RemoteEngine
from loopwright.build.sampling import SamplingParts
from loopwright.build.session import SamplingSession, open_session, with_weights
from loopwright.config import Loaded
from loopwright.ports import Engine, StalePolicy, Storage
from loopwright.produce import AgentLoopManager, Batch, RolloutRunner
from loopwright.runs.kept_weights import Weights
from loopwright.runs.stored_run import StoredRun
from loopwright.track.console import Console
from loopwright.types import GroupStatus, ProduceKind, Rollout

VERSION = 0


@dataclass(frozen=True, slots=True)
class Made:
    """What one call added to the folder."""

    groups: int = 0
    tokens: int = 0
    seconds: float = 0.0


async def roll_out(
    loaded: Loaded,
    weights: Weights,
    out: Path,
    *,
    groups: int,
    cache: Path,
    fresh: bool = False,
    console: Console | None = None,
    remote: RemoteEngine | None = None,
) -> Made:
    """Sample from `weights`, or from those of `remote`, until the folder `out` holds `groups` groups."""
    # Nothing is evaluated, so the evaluation tasks need not be there.
    config = loaded.config.model_copy(update={"eval": None})
    session_of = with_weights(replace(loaded, config=config), weights, out)
    async with open_session(
        session_of, cache=cache, version=VERSION, fresh=fresh, console=console, remote=remote
    ) as session:
        return await _make(session, groups)


async def sample_groups(
    sampling: SamplingParts, runner: RolloutRunner, engine: Engine, version: int, groups: int
) -> list[Rollout]:
    """Sample groups with the engine's weights `version`. They are not stored; another call draws the same tasks."""
    producer = await _producer(sampling, runner, engine, MemoryStorage(), version)
    try:
        batch = await producer.produce_batch(version + 1, version, groups)
    finally:
        await producer.shutdown()
    return [rollout for group in batch.groups for rollout in group.rollouts]


async def _make(session: SamplingSession, groups: int) -> Made:
    batch_size = session.sampling.config.trainer.groups_per_step
    batches = StoredRun(session.folder.rollouts).steps()
    number = batches[-1] if batches else 0
    producer = await _producer(
        session.sampling, session.runner, session.engine, session.storage, number, session.on_rollout
    )
    missing = groups - await _count(session)
    made = Made()
    while missing > 0:
        number += 1
        started = time.monotonic()
        with session.tracker.span("rollout", step=number):
            batch = await producer.produce_batch(number, VERSION, min(batch_size, missing))
        await producer.consume(batch.groups, number)
        seconds = time.monotonic() - started
        session.tracker.log(number, {**batch.metrics, "time/rollout": seconds})
        made = Made(made.groups + len(batch.groups), made.tokens + _tokens(batch), made.seconds + seconds)
        missing -= len(batch.groups)
    return made


async def _producer(
    sampling: SamplingParts,
    runner: RolloutRunner,
    engine: Engine,
    storage: Storage,
    batch: int,
    on_rollout: Callable[[Rollout], None] | None = None,
) -> AgentLoopManager:
    """The manager of a session that goes on after `batch`, with what was drawn and not finished."""
    # Nothing is filtered: groups that a train step would drop are results of these weights too.
    sets = [replace(task_set, filter=None) for task_set in sampling.train_sets]
    names = [task_set.name for task_set in sets]
    buffer, plans = await StoredBuffer.resume(storage, StalePolicy(horizon=None), names, step=batch)
    # Nothing is trained meanwhile, so no groups are made ahead.
    produce = sampling.config.produce.model_copy(update={"kind": ProduceKind.SYNC})
    settings = parts.produce_settings(sampling.config.model_copy(update={"produce": produce}))
    return AgentLoopManager(sets, runner, buffer, engine, settings, step=batch, plans=plans, on_rollout=on_rollout)


async def _count(session: SamplingSession) -> int:
    counts = await session.storage.counts()
    return sum(by_status[GroupStatus.CONSUMED] for by_status in counts.values())


def _tokens(batch: Batch) -> int:
    rollouts = (rollout for group in batch.groups for rollout in group.rollouts)
    return sum(rollout.episode.sampled_tokens for rollout in rollouts if rollout.episode)
