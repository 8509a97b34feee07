"""Disaggregated training: engines sample in their own processes while the learner trains in this one.

    take a batch ──► train on it ──► new weights due? ──no──► (next step)
         ▲                                  │ yes
         │                                  ▼
         └── continue ◄── checkpoint? ◄── evaluate? ◄── publish ◄── pause

Production runs at the same time, and stands still from pause to continue. The learner waits for production in `take`.
Production waits for the learner at its gate, when it is as far ahead as staleness allows. They never wait for each
other at the same time: an empty batch means that only newer weights open the gate. Then the weights are published, and
the same step is asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from loopwright.errors import CheckpointError
from loopwright.ports import Engine, Learner, Tracker, WeightPublisher
from loopwright.produce import AgentLoopManager, Batch
from loopwright.trainers.intervals import Intervals
from loopwright.trainers.upkeep import Upkeep
from loopwright.trainers.watchdog import Watchdog
from loopwright.types import PauseMode


class DisaggregatedTrainer:
    """Trains from the learner's present step up to step `intervals.steps`. A run that is stopped ends with a
    checkpoint.

    `owes_evaluation`: the learner's present weights must be evaluated before training continues. `restarts` returns how
    often an engine was started again.
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
        in_flight: PauseMode,
        watchdog: Watchdog,
        restarts: Callable[[], int],
        owes_evaluation: bool = True,
    ) -> None:
        self._manager = manager
        self._engine = engine
        self._learner = learner
        self._weights = weights
        self._upkeep = upkeep
        self._tracker = tracker
        self._intervals = intervals
        self._in_flight = in_flight
        self._watchdog = watchdog
        self._owes_evaluation = owes_evaluation
        self._restarts = restarts
        self._restarts_before = 0
        self._sync_seconds = 0.0
        self._is_mid_step = False

    async def train(self) -> bool:
        """Train. True if the last step was reached, False if the run was stopped before."""
        try:
            async with self._produced_beside():
                reached = await self._begin() and await self._train()
        except CheckpointError:
            raise
        except Exception as error:
            # Unless the error came in the middle of a step, the learner's state is consistent, so it is saved.
            if not self._is_mid_step:
                await self._checkpoint_after(error)
            raise
        if not reached:
            await self._checkpoint()
        return reached

    @asynccontextmanager
    async def _produced_beside(self) -> AsyncIterator[None]:
        """Produce groups until the block ends. Groups that are unfinished then are stored, and continue in the next
        run."""
        producing = asyncio.create_task(self._manager.produce_loop(), name="production")
        try:
            yield
        finally:
            try:
                await self._manager.shutdown()
            finally:
                (broken,) = await asyncio.gather(producing, return_exceptions=True)
        # If the block itself failed, its error came first, or is the same: `take` also raises production's error.
        if broken is not None:
            raise broken

    async def _begin(self) -> bool:
        """Give the engines the learner's weights before anything is sampled. False if the run must stop."""
        await self._publish()
        return not self._owes_evaluation or await self._evaluate()

    async def _train(self) -> bool:
        if self._learner.version < self._intervals.steps:
            await self._continue()
        while (step := self._learner.version + 1) <= self._intervals.steps:
            batch = await self._take(step)
            if batch is None:
                return False
            await self._learn(step, batch)
            if self._intervals.syncs(step, wanted=self._manager.wants_weights) and not await self._sync():
                return False
        return True

    async def _take(self, step: int) -> Batch | None:
        """The batch of the step, or None if the run must stop. If production failed, its own error is raised."""
        waited = 0.0
        while True:
            started = self._now()
            with self._tracker.span("wait", step=step):
                batch = await self._watchdog.wait_or_stop(f"a batch for step {step}", self._manager.take(step))
            waited += self._now() - started
            if batch is None:
                return None
            if batch.groups:
                return Batch(batch.groups, {**batch.metrics, "time/wait": waited})
            if not await self._renew():
                return None
            await self._continue()

    async def _learn(self, step: int, batch: Batch) -> None:
        started = self._now()
        # A checkpoint at this point would hold half an update, or its groups would be handed out a second time.
        self._is_mid_step = True
        with self._tracker.span("train", step=step):
            report = await self._learner.step(batch.groups)
        await self._manager.consume(batch.groups, step)
        self._is_mid_step = False
        train, sync, wait = self._now() - started, self._sync_seconds, batch.metrics["time/wait"]
        restarts = self._restarts()
        self._tracker.log(
            step,
            {
                **batch.metrics,
                **{f"learner/{name}": value for name, value in report.metrics.items()},
                "time/train": train,
                "time/sync": sync,
                "time/idle_share": 1 - train / (wait + train + sync),
                "engine/restarts": float(restarts - self._restarts_before),
            },
        )
        self._sync_seconds, self._restarts_before = 0.0, restarts

    async def _sync(self) -> bool:
        """Give the engines new weights, and do what else is due after this step. False if the run must stop."""
        step = self._learner.version
        if not await self._renew():
            return False
        if self._intervals.evaluates(step) and not await self._evaluate():
            return False
        if self._intervals.checkpoints(step):
            await self._checkpoint()
        if step < self._intervals.steps:
            await self._continue()
        return True

    async def _renew(self) -> bool:
        """Pause production and give the engines the newest weights. False if the run must stop."""
        started = self._now()
        with self._tracker.span("sync", step=self._learner.version):
            pausing = self._manager.pause(self._in_flight)
            await self._watchdog.wait_or_stop(f"the rollouts under way to {self._in_flight}", pausing)
            if self._watchdog.is_stopping:
                return False
            await self._publish()
        self._sync_seconds += self._now() - started
        return True

    async def _publish(self) -> None:
        version = self._learner.version
        await self._watchdog.wait(
            f"the engines to load the weights of version {version}", self._weights.publish(version)
        )

    async def _evaluate(self) -> bool:
        """Evaluate while no group starts. False if the run must stop.

        The engines answer again, so rollouts that were held by the pause (`keep`, and agents that cannot be
        interrupted) continue during the evaluation.
        """
        await self._watchdog.wait("the engines to resume", self._engine.resume())
        return await self._upkeep.evaluate()

    async def _continue(self) -> None:
        await self._watchdog.wait("production to go on", self._manager.continue_(self._learner.version))

    async def _checkpoint_after(self, error: Exception) -> None:
        """Write a checkpoint after `error`. If this fails too, for example because the disk is full, `error` stays the
        one that is raised, because it came first."""
        try:
            await self._checkpoint()
        except CheckpointError as another:
            error.add_note(f"besides, {another.message}")

    async def _checkpoint(self) -> None:
        await self._upkeep.checkpoint(await self._manager.save())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
