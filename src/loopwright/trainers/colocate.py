"""Colocated training: sample, then train, on the same device and the same parameters.

roll out a batch -> train on it -> tell the engine its new version -> evaluate? -> checkpoint?
      ^                                                                              │
      └──────────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from loopwright.core.together import to_its_end
from loopwright.errors import BudgetError, RunError, StalledError
from loopwright.ports import Engine, Learner, Tracker, WeightPublisher
from loopwright.produce import AgentLoopManager, Batch
from loopwright.trainers.intervals import Intervals
from loopwright.trainers.step import Step, restart_metrics
from loopwright.trainers.upkeep import Upkeep
from loopwright.trainers.watchdog import Watchdog
from loopwright.types import PauseMode


class ColocateTrainer:
    """Trains from the learner's present step up to step `intervals.steps`. A run that is stopped ends with a
    checkpoint.

    `owes_evaluation`: the learner's present weights must be evaluated before training continues. The learner was lost
    `learner_restarts` times before.
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
        learner_restarts: int = 0,
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
        self._restarts = restart_metrics(learner_restarts)
        # These are the draws at the learner's latest step. A batch that is stopped half-way has already drawn more.
        self._next_draws = manager.next_draws
        self._is_mid_step = False
        self._is_broken = False

    @property
    def is_finished(self) -> bool:
        """Whether the last step was reached, and all that is due after it is done."""
        return self._learner.version >= self._intervals.steps and not self._owes_evaluation

    async def train(self) -> bool:
        """Train. True if the last step was reached, False if the run was stopped before."""
        while (step := await self.advance()) is not None and not step.is_last:
            pass
        return self.is_finished

    async def advance(self) -> Step | None:
        """One step, with the evaluation and the checkpoint that are due after it.

        None when none is left, or when the run is to stop: what was learned is in a checkpoint then. A step that is
        cancelled before it learns can be made again; later, it is finished first.
        """
        self._require_sound()
        try:
            return await self._advance()
        except asyncio.CancelledError:
            # Production pauses the engine at the end of a batch. What comes next samples again.
            await to_its_end(self._engine.resume())
            raise
        except Exception:
            self._is_broken = True
            raise

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Between steps the engine answers with the learner's weights, and nothing else is sampled."""
        self._require_sound()
        yield

    async def evaluate(self) -> Mapping[str, float] | None:
        """Evaluate the weights as they are. None when the run is to stop meanwhile."""
        async with self.sampling():
            metrics = await self._upkeep.evaluate()
            self._owes_evaluation = self._owes_evaluation and metrics is None
        return metrics

    async def close(self, *, save: bool) -> None:
        """No step follows. With `save`, what was learned since the latest checkpoint is kept, unless a step broke."""
        if save and not self._is_broken and not self._is_mid_step and self._upkeep.owes_checkpoint:
            await self._checkpoint()

    async def _advance(self) -> Step | None:
        if self._owes_evaluation and await self.evaluate() is None:
            await self._checkpoint()
            return None
        step = self._learner.version + 1
        if step > self._intervals.steps:
            return None
        batch = await self._roll_out(step)
        if batch is None:
            await self._checkpoint()
            return None
        metrics = await to_its_end(self._learn(step, batch))
        if self._owes_evaluation:
            evaluated = await self.evaluate()
            if evaluated is None:
                await self._checkpoint()
                return Step(step, metrics, is_last=True)
            metrics |= evaluated
        if self._intervals.checkpoints(step):
            await self._checkpoint()
        return Step(step, metrics, is_last=step == self._intervals.steps)

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

    async def _learn(self, step: int, batch: Batch) -> dict[str, float]:
        """Train on the batch. Once begun, this runs to its end: the learner computes on, also when nobody waits."""
        # The engine shares the parameters, so nothing may be sampled while they change. Rollouts that are still running
        # belong to the next step, and are not waited for.
        await self._engine.pause(PauseMode.ABORT)
        started = time.monotonic()
        # A checkpoint in between would hold half an update, or groups that the ledger would give out once more.
        self._is_mid_step = True
        with self._tracker.span("train", step=step):
            report = await self._learner.step(batch.groups)
        trained = time.monotonic()
        with self._tracker.span("sync", step=step):
            published = await self._weights.publish(report.version)
            await self._engine.resume()
        await self._manager.consume(batch.groups, step, report.rollouts)
        self._next_draws = self._manager.next_draws
        self._is_mid_step = False
        self._owes_evaluation = self._intervals.evaluates(step)
        times = {"time/train": trained - started, "time/sync": time.monotonic() - trained}
        learned = {f"learner/{name}": value for name, value in report.metrics.items()}
        metrics = {**batch.metrics, **learned, **published, **times, **self._restarts}
        self._tracker.log(step, metrics)
        return metrics

    def _require_sound(self) -> None:
        if self._is_broken or self._is_mid_step:
            raise RunError("the run cannot go on: a step broke", remedy="fix the cause, then open the run again")

    async def _checkpoint(self) -> None:
        await self._upkeep.checkpoint({"next_draws": self._next_draws})
