"""Disaggregated training: engines sample in processes of their own while the learner trains in this one.

    take a batch ──► train on it ──► new weights due? ──no──► (next step)
         ▲                                  │ yes
         │                                  ▼
         └── continue ◄── checkpoint? ◄── evaluate? ◄── publish ◄── pause

Production goes on beside all this, and stands still from pause to continue. The learner waits for production in
`take`; production waits for the learner at its gate, when it is as far ahead as staleness allows. They never wait for
each other: an empty batch says that only newer weights open the gate, so they are published, and the same step is asked
for again.
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
    """Trains up to step `intervals.steps`, from wherever the learner is. A run that is to stop ends with a checkpoint.

    `owes_evaluation`: the weights that the learner has now are to be evaluated before it goes on. `restarts` counts how
    often an engine had to be started again.
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
        """Train. True when the last step was reached, False when the run was to stop before."""
        try:
            async with self._produced_beside():
                reached = await self._begin() and await self._train()
        except CheckpointError:
            raise
        except Exception as error:
            # Unless it broke in the middle of a step, the learner is sound, and what it has learned is kept.
            if not self._is_mid_step:
                await self._checkpoint_after(error)
            raise
        if not reached:
            await self._checkpoint()
        return reached

    @asynccontextmanager
    async def _produced_beside(self) -> AsyncIterator[None]:
        """Have groups made until the block ends. What is under way then is stored, and goes on in the next run."""
        producing = asyncio.create_task(self._manager.produce_loop(), name="production")
        try:
            yield
        finally:
            try:
                await self._manager.shutdown()
            finally:
                (broken,) = await asyncio.gather(producing, return_exceptions=True)
        # If the block has failed, that was first, or the same: what breaks production is raised by `take`, too.
        if broken is not None:
            raise broken

    async def _begin(self) -> bool:
        """Bring the engines to the learner's weights before anything is sampled. False when the run is to stop."""
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
        """The batch of the step, or None when the run is to stop. A producer that broke ends it with its own error."""
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
        # A checkpoint in between would hold half an update, or groups that the ledger would give out once more.
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
        """New weights for the engines, and what else is due after this step. False when the run is to stop."""
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
        """Stop production and give the engines the newest weights. False when the run is to stop."""
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
        """While no group starts. False when the run is to stop.

        The engines answer again, so rollouts that the pause holds (`keep`, and agents that cannot be interrupted) go on
        beside the evaluation.
        """
        await self._watchdog.wait("the engines to resume", self._engine.resume())
        return await self._upkeep.evaluate()

    async def _continue(self) -> None:
        await self._watchdog.wait("production to go on", self._manager.continue_(self._learner.version))

    async def _checkpoint_after(self, error: Exception) -> None:
        """A full disk, say, breaks this too. What broke first is the cause, and stays the error that is told."""
        try:
            await self._checkpoint()
        except CheckpointError as another:
            error.add_note(f"besides, {another.message}")

    async def _checkpoint(self) -> None:
        await self._upkeep.checkpoint(await self._manager.save())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
