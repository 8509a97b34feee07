"""Opens what of a run a lost learner takes along: the learner itself, the ledger of what was made with its weights, and
production. A run that starts opens it as one does whose learner was lost: at its latest checkpoint (D1), as a new
lineage. What outlives a lost learner is in `build/standing.py`.

The invariant: nothing is sampled before the engines were proven to have the weights of the new learner (W1).
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loopwright.buffer.replay import StoredBuffer
from loopwright.build import parts
from loopwright.build.followers import open_followers
from loopwright.build.gateway import RunSessions
from loopwright.build.learner import open_learner
from loopwright.build.lease_holder import lease_holder, unfinished_groups
from loopwright.build.sampling import OnSessions, SessionCounts
from loopwright.build.standing import Standing, checkpoints_of, forgets
from loopwright.build.status import RunStatus, told_status
from loopwright.build.training import ResumeState, RunParts, Trainer, make_trainer
from loopwright.ports import Learner, Tracker, WeightPublisher
from loopwright.produce import RolloutRunner
from loopwright.track.fanout import Trackers
from loopwright.track.jsonl import read_jsonl
from loopwright.track.phases import Phases
from loopwright.track.tensorboard import TensorboardTracker
from loopwright.types import TrainerKind

if TYPE_CHECKING:
    from loopwright.gateway.remote_policy import RemoteSessionPolicies


@dataclass(frozen=True, slots=True)
class Lineage:
    """A run as it goes on from one checkpoint, with one learner."""

    learner: Learner
    tracker: Tracker
    runner: RolloutRunner
    trainer: Trainer


@asynccontextmanager
async def open_lineage(standing: Standing, *, restarts: int) -> AsyncIterator[Lineage]:
    """Go on from the latest checkpoint, or begin with the initial weights. The learner was lost `restarts` times
    before. Rollouts that are in flight when the block ends are interrupted."""
    settings, folder, sampling = standing.settings, standing.folder, standing.sampling
    async with AsyncExitStack() as stack:
        resume_state = await _resume(standing, restarts)
        latest = resume_state.latest
        learner = await stack.enter_async_context(open_learner(standing, latest))
        sampling.model.tokenizer.save_pretrained(folder.tokenizer)
        folder.adopt(settings.snapshot, settings.loaded.base)
        phases = Phases()
        tracker = _tracker(standing, learner.version, phases)
        following = open_followers(settings.loaded, folder, standing.storage.lineage, settings.env)
        await stack.enter_async_context(following)
        weights = await _followed(standing, learner)
        counts: list[SessionCounts] = []
        runner = await stack.enter_async_context(_runner(standing, resume_state, counts.append))
        run_parts = RunParts(
            sampling, folder, standing.storage, resume_state, learner, weights, tracker, standing.engines, runner
        )
        on_rollout = settings.console.on_rollout if settings.console else None
        trainer, manager, watchdog = make_trainer(
            run_parts, stop=settings.stop, restarts=restarts, on_rollout=on_rollout
        )
        stack.push_async_callback(manager.shutdown)
        status = RunStatus(standing, learner, manager, watchdog, phases, counts[0] if counts else None)
        await stack.enter_async_context(told_status(status))
        stack.enter_context(_out_of_the_collectors_way())
        yield Lineage(learner, tracker, runner, trainer)


async def _resume(standing: Standing, restarts: int) -> ResumeState:
    """Find the latest checkpoint and bring the ledger back to it (D1, D3)."""
    config = standing.config
    checkpoints = checkpoints_of(config, standing.folder)
    checkpoints.clear_unfinished()
    latest = checkpoints.latest()
    step = latest.step if latest else 0
    names = [task_set.name for task_set in config.task_sets]
    drawn = latest.state["next_draws"] if latest else {}
    # If everything after the checkpoint is made again, or the ledger began with this process and is empty, the
    # checkpoint has the next draws. A ledger in memory outlives the learner.
    from_checkpoint = config.trainer.deterministic or (forgets(config) and not restarts)
    next_draws = {name: drawn.get(name, 0) for name in names} if from_checkpoint else None
    policy = parts.stale_policy(config)
    buffer, plans = await StoredBuffer.resume(standing.storage, policy, names, step=step, next_draws=next_draws)
    return ResumeState(checkpoints, latest, buffer, plans, await standing.storage.evaluations())


def _tracker(standing: Standing, step: int, phases: Phases) -> Tracker:
    """Where numbers and events go. What was told of later steps is told again."""
    folder, console = standing.folder, standing.settings.console
    standing.journal.rewind(step)
    trackers: list[Tracker] = [standing.journal, phases]
    if standing.config.track.tensorboard:
        trackers.append(TensorboardTracker(folder.tensorboard, read_jsonl(folder.metrics)))
    return Trackers(*trackers, *([console] if console else []))


async def _followed(standing: Standing, learner: Learner) -> WeightPublisher:
    """Have the engines follow this learner. Gives the way of its weights to them."""
    engines, config, console = standing.engines, standing.config, standing.settings.console
    if console is not None:
        console.say(f"training in {learner.describes}")
    weights = engines.follow(learner)
    if config.trainer.kind is TrainerKind.COLOCATE and not engines.share_weights:
        # A colocated trainer publishes after it has trained. The engines may have others: those that they were started
        # with, or those of a learner that was lost.
        await weights.publish(learner.version)
        await engines.engine.resume()
    return weights


@asynccontextmanager
async def _runner(
    standing: Standing, resume_state: ResumeState, on_sessions: OnSessions
) -> AsyncIterator[RolloutRunner]:
    """Runs rollouts. Sessions at a gateway elsewhere belong to the lineage, so it is registered there."""
    sampling, engines, console = standing.sampling, standing.engines, standing.settings.console
    elsewhere = None
    if standing.brought is not None:
        unfinished, held = unfinished_groups(standing.folder, resume_state.plans), engines.engine.held_seconds
        holder = lease_holder(standing.folder, standing.storage)
        sessions = RunSessions(standing.settings.loaded, standing.brought, holder, unfinished, held, standing.redact)
        elsewhere = _sessions_over_http(standing, sessions)
    concurrency = sampling.concurrency(engines.engine.capacities)
    if console is not None and standing.config.rollout.concurrency == "auto":
        console.say(f"rollout.concurrency: {concurrency} rollouts at a time, which is what the engines can hold")
    async with sampling.runner(
        engines.engine,
        engines.lockstep,
        engines.engine.held_seconds,
        redact=standing.redact,
        concurrency=concurrency,
        elsewhere=elsewhere,
        reached=standing.reached,
        in_flight=engines.engine.in_flight,
        on_sessions=on_sessions,
    ) as runner:
        yield runner


def _sessions_over_http(
    standing: Standing, sessions: RunSessions
) -> AbstractAsyncContextManager[RemoteSessionPolicies] | None:
    """The sessions of agents behind a gateway, if that or some of these agents are elsewhere."""
    sampling, engine = standing.sampling, standing.engines.engine
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


@contextmanager
def _out_of_the_collectors_way() -> Iterator[None]:
    """A full garbage collection every few steps stalled the event loop; freeze what lives as long as the lineage."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
