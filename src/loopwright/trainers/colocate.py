"""Colocated training: sample, then train, on the same device and the same parameters.

roll out a batch -> train on it -> tell the engine its new version -> evaluate? -> checkpoint?
      ^                                                                              │
      └──────────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from loopwright.errors import BudgetError, StalledError
from loopwright.ports import Engine, Learner, Tracker, WeightPublisher
from loopwright.produce import AgentLoopManager, Batch
from loopwright.trainers.intervals import Intervals
from loopwright.trainers.upkeep import Upkeep
from loopwright.trainers.watchdog import Watchdog
from loopwright.types import PauseMode


class ColocateTrainer:
    """Trains from the learner's present step up to step `intervals.steps`. A run that is stopped ends with a
    checkpoint.

    `owes_evaluation`: the learner's present weights must be evaluated before training continues.
    """

    def __init__(
        self,
        *,
        manager: AgentLoopManager,
        engine: Engine,
        learner: Learner,
        weights: WeightPublisher,
        upkeep: Upkeep,
        tracker: Tracker,
        intervals: Intervals,
        watchdog: Watchdog,
        owes_evaluation: bool = True,
    ) -> None:
        self._manager = manager
        self._engine = engine
        self._learner = learner
        self._weights = weights
        self._upkeep = upkeep
        self._tracker = tracker
        self._intervals = intervals
        self._watchdog = watchdog
        self._owes_evaluation = owes_evaluation
        # These are the draws at the learner's latest step. A batch that is stopped half-way has already drawn more.
        self._next_draws = manager.next_draws

    async def train(self) -> bool:
        """Train. True if the last step was reached, False if the run was stopped before."""
        if self._owes_evaluation and not await self._upkeep.evaluate():
            return await self._stopped()
        while self._learner.version < self._intervals.steps:
            if not await self.advance():
                return await self._stopped()
        return True

    async def advance(self) -> bool:
        """One step, with the evaluation and the checkpoint that are due after it. False if the run must stop."""
        step = self._learner.version + 1
        batch = await self._roll_out(step)
        if batch is None:
            return False
        metrics = await self._learn(step, batch)
        self._tracker.log(step, {**batch.metrics, **metrics})
        if self._intervals.evaluates(step) and not await self._upkeep.evaluate():
            return False
        if self._intervals.checkpoints(step):
            await self._checkpoint()
        return True

    async def _roll_out(self, step: int) -> Batch | None:
        """A batch for the step, or None if the run must stop. Finished rollouts are stored in both cases."""
        started = time.monotonic()
        try:
            with self._tracker.span("rollout", step=step):
                batch = await self._watchdog.wait_or_stop(
                    f"the rollouts of step {step}", self._manager.produce_batch(step, self._learner.version)
                )
        except (BudgetError, StalledError):
            # Save the weights: their rollouts can be judged when the cause is fixed, if the next run has these weights.
            await self._checkpoint()
            raise
        if batch is None:
            return None
        return Batch(batch.groups, {**batch.metrics, "time/rollout": time.monotonic() - started})

    async def _learn(self, step: int, batch: Batch) -> Mapping[str, float]:
        # The engine shares the parameters, so nothing may be sampled while they change. Rollouts that are still running
        # belong to the next step, and are not waited for.
        await self._engine.pause(PauseMode.ABORT)
        started = time.monotonic()
        with self._tracker.span("train", step=step):
            report = await self._learner.step(batch.groups)
        trained = time.monotonic()
        with self._tracker.span("sync", step=step):
            await self._weights.publish(report.version)
            await self._engine.resume()
        await self._manager.consume(batch.groups, step)
        self._next_draws = self._manager.next_draws
        times = {"time/train": trained - started, "time/sync": time.monotonic() - trained}
        return {**{f"learner/{name}": value for name, value in report.metrics.items()}, **times}

    async def _stopped(self) -> bool:
        await self._checkpoint()
        return False

    async def _checkpoint(self) -> None:
        await self._upkeep.checkpoint({"next_draws": self._next_draws})
