"""Colocated training: sample, then train, on the same device and the same parameters.

roll out a batch -> train on it -> tell the engine its new version -> evaluate? -> checkpoint?
      ^                                                                              │
      └──────────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from loopwright.errors import BudgetError
from loopwright.ports import CheckpointEngine, Engine, Learner, Tracker
from loopwright.produce import Batch, SyncProducer
from loopwright.trainers.checkpoint import Checkpoints
from loopwright.trainers.evaluator import Evaluator

T = TypeVar("T")

log = logging.getLogger("loopwright")


@dataclass(frozen=True, slots=True)
class Intervals:
    """How many steps to train, and after how many of them to do what. 0 is never; the last step counts always."""

    steps: int
    evaluate: int
    checkpoint: int

    def evaluates(self, step: int) -> bool:
        """Whether the weights after `step` are evaluated; 0 is before training."""
        return step == 0 or self._due(step, self.evaluate)

    def checkpoints(self, step: int) -> bool:
        return self._due(step, self.checkpoint)

    def _due(self, step: int, interval: int) -> bool:
        return step == self.steps or (interval > 0 and step % interval == 0)


class ColocateTrainer:
    """Trains up to step `intervals.steps`, from wherever the learner is. Setting `stop` ends it after a checkpoint.

    `owes_evaluation`: the weights that the learner has now are to be evaluated before it goes on.
    """

    def __init__(
        self,
        *,
        producer: SyncProducer,
        engine: Engine,
        learner: Learner,
        weights: CheckpointEngine,
        evaluator: Evaluator | None,
        checkpoints: Checkpoints,
        tracker: Tracker,
        intervals: Intervals,
        stop: asyncio.Event,
        owes_evaluation: bool = True,
    ) -> None:
        self._producer = producer
        self._engine = engine
        self._learner = learner
        self._weights = weights
        self._evaluator = evaluator
        self._checkpoints = checkpoints
        self._tracker = tracker
        self._intervals = intervals
        self._stop = stop
        self._owes_evaluation = owes_evaluation
        # As of the learner's latest step: a batch that is stopped half-way has drawn more already.
        self._next_draws = producer.next_draws

    async def train(self) -> bool:
        """Train. True when the last step was reached, False when `stop` came first."""
        if self._owes_evaluation and not await self._evaluate(self._learner.version):
            return await self._stopped()
        while self._learner.version < self._intervals.steps:
            if not await self.advance():
                return await self._stopped()
        return True

    async def advance(self) -> bool:
        """One step, with the evaluation and the checkpoint that are due after it. False when `stop` came first."""
        step = self._learner.version + 1
        batch = await self._roll_out(step)
        if batch is None:
            return False
        metrics = await self._learn(step, batch)
        self._tracker.log(step, {**batch.metrics, **metrics})
        if self._intervals.evaluates(step) and not await self._evaluate(step):
            return False
        if self._intervals.checkpoints(step):
            await self._checkpoint()
        return True

    async def _roll_out(self, step: int) -> Batch | None:
        """A batch for the step, or None when `stop` was set meanwhile. Finished rollouts are stored either way."""
        started = time.monotonic()
        try:
            with self._tracker.span("rollout", step=step):
                batch = await self._or_stop(self._producer.produce_batch(step, self._learner.version))
        except BudgetError:
            # What these weights sampled can be judged when the cause is mended, if the next run still has them.
            await self._checkpoint()
            raise
        if batch is None:
            return None
        return Batch(batch.groups, {**batch.metrics, "time/rollout": time.monotonic() - started})

    async def _learn(self, step: int, batch: Batch) -> Mapping[str, float]:
        # The parameters are shared: nothing may be sampled while they change.
        await self._engine.pause()
        started = time.monotonic()
        with self._tracker.span("train", step=step):
            report = await self._learner.step(batch.groups)
        trained = time.monotonic()
        with self._tracker.span("sync", step=step):
            await self._weights.publish(report.version)
            await self._engine.resume()
        await self._producer.consume(batch.groups, step)
        self._next_draws = self._producer.next_draws
        times = {"time/train": trained - started, "time/sync": time.monotonic() - trained}
        return {**{f"learner/{name}": value for name, value in report.metrics.items()}, **times}

    async def _evaluate(self, step: int) -> bool:
        """False when `stop` was set meanwhile: the evaluation is then made when the run goes on."""
        if self._evaluator is not None:
            report = await self._or_stop(self._evaluator.evaluate(step))
            if report is None:
                return False
            self._tracker.log(step, report.metrics)
            for error in report.errors:
                log.warning("step %d: %s", step, error)
        return True

    async def _stopped(self) -> bool:
        await self._checkpoint()
        return False

    async def _checkpoint(self) -> None:
        """Save the state after the learner's latest step. Before the first step there is nothing to save."""
        step = self._learner.version
        if step > 0:
            state = {"next_draws": self._next_draws}
            with self._tracker.span("checkpoint", step=step):
                await self._checkpoints.write(step, self._learner.save, state)

    async def _or_stop(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What `work` returns, or None when `stop` is set first: then it is cancelled, and waited for."""
        task, stopped = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            task.cancel()
            await asyncio.wait({task, stopped})
        return None if task.cancelled() else task.result()
