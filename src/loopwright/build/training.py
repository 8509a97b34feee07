"""Makes the trainer of an open run from its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from loopwright.build import parts
from loopwright.build.engines import Engines
from loopwright.build.eval_plans import eval_modes
from loopwright.build.sampling import LocalSamplingParts
from loopwright.ports import Learner, ReplayBuffer, ResumePlan, Storage, Tracker, WeightPublisher
from loopwright.produce import AgentLoopManager, RolloutRunner
from loopwright.runs.checkpoint import Checkpoint, Checkpoints
from loopwright.runs.run_folder import RunFolder
from loopwright.trainers.colocate import ColocateTrainer
from loopwright.trainers.disaggregated import DisaggregatedTrainer
from loopwright.trainers.evaluator import Evaluator
from loopwright.trainers.upkeep import Upkeep
from loopwright.trainers.watchdog import Watchdog
from loopwright.types import Rollout, TrainerKind

Trainer = ColocateTrainer | DisaggregatedTrainer


@dataclass(frozen=True, slots=True)
class ResumeState:
    """What an earlier lineage left of a run: its latest checkpoint, its groups as of that checkpoint, and which
    steps, task sets and modes are `evaluated`."""

    checkpoints: Checkpoints
    latest: Checkpoint | None
    buffer: ReplayBuffer
    plans: Mapping[str, ResumePlan]
    evaluated: frozenset[tuple[int, str, str]]


@dataclass(frozen=True, slots=True)
class RunParts:
    """What an opened run consists of."""

    sampling: LocalSamplingParts
    folder: RunFolder
    storage: Storage
    resume_state: ResumeState
    learner: Learner
    weights: WeightPublisher
    tracker: Tracker
    engines: Engines
    runner: RolloutRunner


class Rollouts:
    """Counts finished rollouts, and passes each on."""

    def __init__(self, on_rollout: Callable[[Rollout], None] | None) -> None:
        self._on_rollout = on_rollout
        self.count = 0

    def saw(self, rollout: Rollout) -> None:
        self.count += 1
        if self._on_rollout is not None:
            self._on_rollout(rollout)


def make_trainer(
    run_parts: RunParts,
    *,
    stop: asyncio.Event,
    restarts: int,
    on_rollout: Callable[[Rollout], None] | None,
) -> tuple[Trainer, AgentLoopManager, Watchdog]:
    """The trainer that `trainer.kind` names, the manager of its production, and what watches its waits. The learner was
    lost `restarts` times before."""
    sampling, learner, tracker = run_parts.sampling, run_parts.learner, run_parts.tracker
    engines, runner = run_parts.engines, run_parts.runner
    config, rollouts = sampling.config, Rollouts(on_rollout)
    manager = AgentLoopManager(
        sampling.train_sets,
        runner,
        run_parts.resume_state.buffer,
        engines.engine,
        parts.produce_settings(config),
        step=learner.version,
        plans=run_parts.resume_state.plans,
        on_rollout=rollouts.saw,
    )
    watchdog = Watchdog(
        stop=stop,
        seconds=config.trainer.stall_seconds,
        progress=lambda: (engines.engine.steps, rollouts.count, manager.moves, learner.version),
        describe=manager.describe,
    )
    evaluator = None
    if sampling.eval_sets:
        sets, plans = sampling.eval_sets, sampling.eval_plans
        evaluator = Evaluator(sets, plans, runner, run_parts.storage, tracker, on_rollout=rollouts.saw)
    trainer = _kind(run_parts)(
        manager=manager,
        engine=engines.engine,
        learner=learner,
        weights=run_parts.weights,
        upkeep=Upkeep(
            learner=learner,
            evaluator=evaluator,
            checkpoints=run_parts.resume_state.checkpoints,
            tracker=tracker,
            watchdog=watchdog,
            storage=run_parts.storage,
            archives=config.buffer.archive,
        ),
        tracker=tracker,
        intervals=parts.intervals(config),
        watchdog=watchdog,
        owes_evaluation=_owes_evaluation(run_parts),
        learner_restarts=restarts,
    )
    return trainer, manager, watchdog


def _kind(run_parts: RunParts) -> Callable[..., Trainer]:
    config = run_parts.sampling.config
    if config.trainer.kind is TrainerKind.COLOCATE:
        return ColocateTrainer
    return partial(DisaggregatedTrainer, in_flight=config.produce.in_flight, restarts=run_parts.engines.restarts)


def _owes_evaluation(run_parts: RunParts) -> bool:
    """Whether an evaluation of the current weights is due and is missing, or has not all its modes."""
    config, step = run_parts.sampling.config, run_parts.learner.version
    if config.eval is None or not parts.intervals(config).evaluates(step):
        return False
    wanted = {(step, task_set.name, mode) for task_set in config.eval.task_sets for mode in eval_modes(config.eval)}
    return not wanted <= run_parts.resume_state.evaluated
