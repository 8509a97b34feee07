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
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum

from loopwright.core.together import to_its_end
from loopwright.errors import CheckpointError, LearnerLostError, RunError
from loopwright.ports import Engine, Learner, Tracker, WeightPublisher
from loopwright.produce import AgentLoopManager, Batch
from loopwright.trainers.intervals import Intervals
from loopwright.trainers.step import Step, restart_metrics
from loopwright.trainers.upkeep import Upkeep
from loopwright.trainers.watchdog import Watchdog
from loopwright.types import PauseMode


class _State(StrEnum):
    """Whether more steps may follow, and if not, what the last one was."""

    GOES_ON = "goes on"
    DONE = "done"
    """The last of the run, or the last before it is to stop."""
    BROKEN = "broken"
    CANCELLED = "cancelled"


class DisaggregatedTrainer:
    """Trains from the learner's present step up to step `intervals.steps`. A run that is stopped ends with a
    checkpoint.

    `owes_evaluation`: the learner's present weights must be evaluated before training continues. `restarts` returns how
    often an engine was started again. The learner was lost `learner_restarts` times before.
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
        learner_restarts: int = 0,
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
        self._learner_restarts = restart_metrics(learner_restarts)
        self._restarts = restarts
        # Engines outlive a learner that is lost, and the trainer before this one has told of these.
        self._restarts_before = restarts()
        self._sync_seconds = 0.0
        self._sync_metrics: Mapping[str, float] = {}
        self._production = AsyncExitStack()
        self._is_begun = False
        self._is_paused = True
        self._published: int | None = None
        self._is_mid_step = False
        self._is_stopped = False
        self._state = _State.GOES_ON

    @property
    def is_finished(self) -> bool:
        """Whether the last step was reached, and all that is due after it is done."""
        return self._learner.version >= self._intervals.steps and not self._owes_evaluation and not self._is_stopped

    async def train(self) -> bool:
        """Train. True if the last step was reached, False if the run was stopped before."""
        while (step := await self.advance()) is not None and not step.is_last:
            pass
        return self.is_finished

    async def advance(self) -> Step | None:
        """One step, with new weights for the engines, the evaluation and the checkpoint if they are due after it.

        None when none is left, or when the run is to stop: what was learned is in a checkpoint then. Groups are made
        from the first step to the last, also in between, while nobody waits for a step.
        """
        if self._state is _State.DONE:
            return None
        async with self._ended_by_errors():
            step = await self._advance()
            if step is None or step.is_last:
                self._state = _State.DONE
        if self._is_stopped:
            await self._checkpoint()
        return step

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Meanwhile the engines answer with the learner's weights, and no group starts until the next step. Rollouts
        that a pause holds (`keep`, and agents that cannot be interrupted) go on beside it."""
        is_new = True
        async with self._ended_by_errors():
            await self._begin()
            if self._state is _State.GOES_ON and not self._is_paused:
                is_new = await self._renew()
            elif self._published != self._learner.version:
                await self._publish()
            await self._watchdog.wait("the engines to resume", self._engine.resume())
        if not is_new:
            raise RunError("nothing more is sampled: the run is to stop", remedy="open the run again")
        yield

    async def evaluate(self) -> Mapping[str, float] | None:
        """Evaluate the weights as they are. None when the run is to stop meanwhile."""
        async with self.sampling():
            return await self._measure()

    async def close(self, *, save: bool) -> None:
        """End production. With `save`, what was learned since the latest checkpoint is kept, unless a step broke."""
        await self._production.aclose()
        is_sound = self._state is not _State.BROKEN and not self._is_mid_step
        if save and is_sound and self._upkeep.owes_checkpoint:
            await self._checkpoint()

    @asynccontextmanager
    async def _ended_by_errors(self) -> AsyncIterator[None]:
        """What breaks the block ends production and the run; and after the last step, production ends with the block.

        Unless it broke in the middle of a step, the learner is sound, and what it has learned is kept.
        """
        if self._state in (_State.BROKEN, _State.CANCELLED):
            raise RunError(f"the run cannot go on: a step was {self._state}", remedy="open the run again")
        try:
            async with AsyncExitStack() as ending:
                ending.push_async_exit(self._production)
                yield
                if self._state is _State.GOES_ON:
                    ending.pop_all()
        except (CheckpointError, LearnerLostError):
            self._state = _State.BROKEN
            raise
        except Exception as error:
            self._state = _State.BROKEN
            if not self._is_mid_step:
                await self._checkpoint_after(error)
            raise
        except BaseException:
            self._state = _State.CANCELLED
            raise

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

    async def _begin(self) -> None:
        """Start production, which is paused at first, and bring the engines to the learner's weights."""
        if not self._is_begun:
            self._is_begun = True
            await self._production.enter_async_context(self._produced_beside())
            await self._publish()

    async def _advance(self) -> Step | None:
        await self._begin()
        if self._owes_evaluation and await self._evaluate() is None:
            self._is_stopped = True
            return None
        step = self._learner.version + 1
        if step > self._intervals.steps:
            return None
        if self._is_paused:
            await self._continue()
        batch = await self._take(step)
        if batch is None:
            self._is_stopped = True
            return None
        metrics = await to_its_end(self._learn(step, batch))
        if self._intervals.syncs(step, wanted=self._manager.wants_weights):
            evaluated = await self._sync()
            self._is_stopped = evaluated is None
            metrics |= evaluated or {}
        return Step(step, metrics, is_last=self._is_stopped or step == self._intervals.steps)

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

    async def _learn(self, step: int, batch: Batch) -> dict[str, float]:
        """Train on the batch. Once begun, this runs to its end: the learner computes on, also when nobody waits."""
        started = self._now()
        # A checkpoint at this point would hold half an update, or its groups would be handed out a second time.
        self._is_mid_step = True
        with self._tracker.span("train", step=step):
            report = await self._learner.step(batch.groups)
        await self._manager.consume(batch.groups, step, report.rollouts)
        self._is_mid_step = False
        train, sync, wait = self._now() - started, self._sync_seconds, batch.metrics["time/wait"]
        restarts = self._restarts()
        metrics = {
            **batch.metrics,
            **{f"learner/{name}": value for name, value in report.metrics.items()},
            "time/train": train,
            "time/sync": sync,
            "time/idle_share": 1 - train / (wait + train + sync),
            "engine/restarts": float(restarts - self._restarts_before),
            **self._sync_metrics,
            **self._learner_restarts,
        }
        self._tracker.log(step, metrics)
        self._sync_seconds, self._sync_metrics, self._restarts_before = 0.0, {}, restarts
        return metrics

    async def _sync(self) -> Mapping[str, float] | None:
        """New weights for the engines, and what else is due after this step: the metrics of its evaluation. None when
        the run is to stop."""
        step = self._learner.version
        metrics: Mapping[str, float] | None = {}
        if not await self._renew():
            return None
        if self._intervals.evaluates(step):
            self._owes_evaluation = True
            metrics = await self._evaluate()
            if metrics is None:
                return None
        if self._intervals.checkpoints(step):
            await self._checkpoint()
        if step < self._intervals.steps:
            await self._continue()
        return metrics

    async def _renew(self) -> bool:
        """Pause production and give the engines the newest weights. False if the run must stop."""
        started = self._now()
        with self._tracker.span("sync", step=self._learner.version):
            self._is_paused = True
            pausing = self._manager.pause(self._in_flight)
            await self._watchdog.wait_or_stop(f"the rollouts under way to {self._in_flight}", pausing)
            if self._watchdog.is_stopping:
                return False
            await self._publish()
        self._sync_seconds += self._now() - started
        return True

    async def _publish(self) -> None:
        version = self._learner.version
        self._sync_metrics = await self._watchdog.wait(
            f"the engines to load the weights of version {version}", self._weights.publish(version)
        )
        self._published = version

    async def _evaluate(self) -> Mapping[str, float] | None:
        """While production is paused. None when the run is to stop.

        The engines answer again, so rollouts that were held by the pause (`keep`, and agents that cannot be
        interrupted) continue during the evaluation.
        """
        await self._watchdog.wait("the engines to resume", self._engine.resume())
        return await self._measure()

    async def _measure(self) -> Mapping[str, float] | None:
        metrics = await self._upkeep.evaluate()
        self._owes_evaluation = self._owes_evaluation and metrics is None
        return metrics

    async def _continue(self) -> None:
        self._is_paused = False
        await self._watchdog.wait("production to go on", self._manager.continue_(self._learner.version))

    async def _checkpoint_after(self, error: Exception) -> None:
        """Write a checkpoint after `error`. If this fails too, for example because the disk is full, `error` stays the
        one that is raised, because it came first."""
        try:
            await self._checkpoint()
        except (CheckpointError, LearnerLostError) as another:
            error.add_note(f"besides, {another.message}")

    async def _checkpoint(self) -> None:
        await self._upkeep.checkpoint(await self._manager.save())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
