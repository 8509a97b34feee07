"""The manager of all production. It decides when groups may start; which ones start is up to the strategies.

    NORMAL ──pause──► UPDATING ──continue_(v)──► NORMAL        any ──shutdown──► FINISHED

It begins in UPDATING. The trainer says with which weights to begin, and only the trainer ends a pause.

    who                     waits for                             woken by
    produce_loop            room in a gate, a free slot           a rollout or a group that ends, take, continue_
    take                    a ready batch                         a group that ends, a producer that crashes
    pause (drain), save     the groups in flight                  their end
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from loopwright.core.admission import horizon_limit
from loopwright.core.ages import staleness_numbers
from loopwright.core.constrained import constrained_numbers
from loopwright.core.progress import ProduceProgress
from loopwright.core.together import to_its_end
from loopwright.errors import RunError, StalledError
from loopwright.ports import Engine, ReplayBuffer, ResumePlan
from loopwright.produce.budgets import nothing_kept
from loopwright.produce.metrics import EMPTY, Batch, SlotMeter, Tally, batch_metrics
from loopwright.produce.rollouts import RolloutRunner
from loopwright.produce.scheduler import GroupScheduler
from loopwright.produce.settings import ProduceSettings, TaskSetRuntime
from loopwright.produce.strategies import ProduceContext
from loopwright.produce.task_set_producer import FRESH, TaskSetProducer
from loopwright.types import Group, PauseMode, ProduceKind, Rollout, TrainedRollout


class ManagerState(StrEnum):
    """What production is doing."""

    NORMAL = "normal"
    """Groups start whenever the limits allow it."""
    UPDATING = "updating"
    """No group starts, because the weights change."""
    FINISHED = "finished"


class AgentLoopManager:
    """Makes groups of one or several task sets: `produce_batch` for a colocated run; `produce_loop`, `take`, `pause`
    and `continue_` for a disaggregated one.

    `step` is the last step that was trained. `plans` say what else a resumed run left over, besides the buffer.
    """

    def __init__(
        self,
        task_sets: Sequence[TaskSetRuntime],
        runner: RolloutRunner,
        buffer: ReplayBuffer,
        engine: Engine,
        settings: ProduceSettings,
        *,
        step: int = 0,
        plans: Mapping[str, ResumePlan] | None = None,
        on_rollout: Callable[[Rollout], None] | None = None,
    ) -> None:
        self._buffer = buffer
        self._engine = engine
        self._settings = settings
        weights = {task_set.name: task_set.weight for task_set in task_sets}
        self._progress = ProduceProgress(weights, settings.groups_per_step, step=step)
        left_over = plans or {}
        self._producers = {
            one.name: TaskSetProducer(one, buffer, self._progress, settings, left_over.get(one.name, FRESH))
            for one in task_sets
        }
        self._scheduler = GroupScheduler(self._producers, runner, buffer, settings, self._context, on_rollout)
        self._meter = SlotMeter(self._scheduler.slots)
        self._state = ManagerState.UPDATING
        self._version = step
        self._begun = step
        self._takes_turns = True
        self._handed_out: tuple[int, Batch] | None = None
        """The step and the batch that `produce_batch` made last, if they are not consumed yet."""
        self._looping = asyncio.Lock()
        self._crash: Exception | None = None

    @property
    def next_draws(self) -> dict[str, int]:
        """Per task set, the first draw that was never made; a checkpoint keeps it."""
        return {name: producer.next_draw for name, producer in self._producers.items()}

    @property
    def state(self) -> ManagerState:
        return self._state

    @property
    def moves(self) -> int:
        """Grows whenever a rollout or a group ends. The watchdog uses it to see whether anything moves."""
        return self._scheduler.moves

    @property
    def wants_weights(self) -> bool:
        """Whether slots are free and no group may start until there are newer weights."""
        last_step, horizons = self._settings.last_step, [one.horizon for one in self._producers.values()]
        if last_step is not None and all(self._version + horizon >= last_step for horizon in horizons):
            return False
        return self._state is ManagerState.NORMAL and self._scheduler.slot_is_free and not self._scheduler.may_start

    async def produce_batch(self, step: int, version: int, size: int | None = None) -> Batch:
        """The groups of train step `step`, made by weights `version`; `size` of them, or `groups_per_step`.

        Until they are consumed, whoever asks for this step again gets the same ones.
        """
        if self._handed_out is not None and self._handed_out[0] == step:
            return self._handed_out[1]
        self._version, self._takes_turns, self._state = version, True, ManagerState.NORMAL
        if size is not None:
            self._progress.resize(size)
        self._scheduler.slots.open()
        try:
            await self._begin(step)
            await self._until_ready(step)
            await self._finish_step(step)
        except BaseException:
            await self._scheduler.abandon()
            raise
        finally:
            self._state = ManagerState.UPDATING
        # Once begun, this runs to its end: groups that have left the buffer are in no other place.
        return await to_its_end(self._hand_out_once(step))

    async def produce_loop(self) -> None:
        """Make groups until `shutdown`. An error that ends it early, such as a spent budget, is also raised in
        `take`."""
        async with self._looping:
            try:
                while self._state is not ManagerState.FINISHED:
                    self._scheduler.claim(self._progress.next_consumer_step)
                    news = self._scheduler.wakeup.news
                    await self._start_groups()
                    await news.wait()
            except Exception as error:
                self._crash = error
                raise
            finally:
                self._state = ManagerState.FINISHED
                self._scheduler.wakeup.notify()
                await self._scheduler.abandon()

    async def take(self, step: int) -> Batch:
        """The groups of train step `step`. An empty batch means: load the newest weights, then ask for this step
        again."""
        self._check_next(step)
        if step != self._begun:
            await self._begin(step)
        while True:
            news = self._scheduler.wakeup.news
            if self._crash is not None:
                raise self._crash
            if self._is_ready(step):
                batch = await self._hand_out(step)
                # Groups that are too old for the next step are made again while this one is trained.
                await self._begin(step + 1)
                return batch
            if self._is_closed:
                if self._version < step - 1:
                    return EMPTY
                raise self._stuck(step)
            await news.wait()

    async def consume(self, groups: Sequence[Group], step: int, trained: Sequence[TrainedRollout] = ()) -> None:
        """Record that `groups` were trained at `step`, and what the step computed of their rollouts."""
        await self._buffer.consume(groups, step, trained)
        self._handed_out = None

    async def pause(self, mode: PauseMode) -> None:
        """Start no more groups, stop what is in flight as `mode` says, and pause the engine."""
        self._check_running("pause")
        self._state = ManagerState.UPDATING
        self._meter.pause()
        self._scheduler.wakeup.notify()
        if mode is PauseMode.DRAIN:
            # Drain groups before the engine: a paused engine would not answer the next call of an agent in flight.
            await self._scheduler.drain()
        await self._interrupt(mode)
        if self._crash is not None:
            raise self._crash

    async def continue_(self, version: int) -> None:
        """Go on with weights `version`, which the engine has loaded."""
        self._check_running("continue")
        self._version, self._takes_turns = version, False
        self._scheduler.slots.open()
        await self._engine.resume()
        self._state = ManagerState.NORMAL
        self._meter.go_on()
        self._scheduler.wakeup.notify()

    async def save(self) -> dict[str, Any]:
        """What a checkpoint keeps of production. If groups are in flight, this waits for them with `in_flight: drain`,
        and raises otherwise. While production is paused, none are."""
        if self._state is ManagerState.NORMAL and not self._scheduler.is_quiet:
            if self._settings.in_flight is not PauseMode.DRAIN:
                raise RunError(
                    f"production cannot be saved while groups are in flight (in_flight: {self._settings.in_flight})\n"
                    f"{self.describe()}",
                    remedy="pause it first",
                )
            await self._scheduler.drain()
        return {"next_draws": self.next_draws}

    async def shutdown(self) -> None:
        """End production. Groups in flight go back to the buffer with what is stored of them."""
        self._state = ManagerState.FINISHED
        self._scheduler.wakeup.notify()
        # If `produce_loop` runs, it abandons its groups itself. Otherwise groups of the last batch may be left here.
        async with self._looping:
            await self._scheduler.abandon()

    def standing(self) -> dict[str, Any]:
        """What `describe` says, as JSON values, without the rollouts."""
        slots = self._scheduler.slots
        return {
            "state": self._state.value,
            "version": self._version,
            "next_step": self._progress.next_consumer_step,
            "slots": {"in_use": slots.in_use, "size": slots.size},
            "task_sets": {name: one.standing(self._context(one)) for name, one in self._producers.items()},
        }

    def describe(self) -> str:
        """Who waits for whom, the counters of every task set, and the oldest rollouts in flight."""
        step = self._progress.next_consumer_step
        parts = [producer.describe(self._context(producer)) for producer in self._producers.values()]
        head = f"  production is {self._state} with weights {self._version}; step {step} is taken next"
        return "\n".join([head, *parts, self._scheduler.describe()])

    async def _begin(self, step: int) -> None:
        """Step `step` is taken next."""
        self._check_next(step)
        self._begun = step
        self._meter.start()
        await self._buffer.expire(step)
        for producer in self._producers.values():
            producer.begin_step(self._context(producer))
        self._scheduler.wakeup.notify()

    async def _until_ready(self, step: int) -> None:
        while True:
            self._scheduler.claim(step)
            news = self._scheduler.wakeup.news
            if self._is_ready(step):
                return
            await self._start_groups()
            if self._is_closed:
                raise self._stuck(step)
            await news.wait()

    async def _finish_step(self, step: int) -> None:
        """Interrupt or wait for groups that the step started but does not need: they are for the next step."""
        if self._settings.in_flight is PauseMode.ABORT and not self._scheduler.is_quiet:
            await self._interrupt(PauseMode.ABORT)
        else:
            await self._scheduler.drain()
        self._scheduler.claim(step)

    async def _start_groups(self) -> None:
        await self._scheduler.start(self._version, lambda: self._state is ManagerState.NORMAL)

    async def _interrupt(self, mode: PauseMode) -> None:
        """Stop what is in flight."""
        if mode is PauseMode.ABORT:
            self._scheduler.slots.interrupt()
        await self._engine.pause(mode)

    def _is_ready(self, step: int) -> bool:
        """Whether every task set has its groups, or has spent its filter budget."""
        return all(not producer.lacks(step) or producer.is_excused for producer in self._producers.values())

    @property
    def _is_closed(self) -> bool:
        """Whether nothing is in flight, and nothing may start."""
        may_start = self._state is ManagerState.NORMAL and self._scheduler.may_start
        return self._scheduler.is_quiet and not may_start

    async def _hand_out(self, step: int) -> Batch:
        wanted = self._progress.wanted(step)
        found = {name: min(count, self._buffer.ready(name, step)) for name, count in wanted.items()}
        if not any(found.values()):
            budgets = [producer.filter_budget for producer in self._producers.values()]
            raise nothing_kept(step, [budget for budget in budgets if budget.is_spent])
        # Count them before they leave the buffer. Otherwise it would look for a moment as if groups were missing.
        self._progress.take(found)
        masked_before, constrained_before = self._buffer.masked_tokens, self._buffer.constrained_tokens
        groups = sorted(await self._buffer.take(step, found), key=self._place)
        tallies = {name: producer.tally for name, producer in self._producers.items()}
        stocks = {name: producer.stock for name, producer in self._producers.items()}
        metrics = batch_metrics(groups, tallies, stocks) | self._meter.read()
        masked = self._buffer.masked_tokens - masked_before
        metrics |= constrained_numbers(groups, self._buffer.constrained_tokens - constrained_before, masked)
        if self._settings.kind is ProduceKind.ASYNC:
            metrics |= staleness_numbers(groups, step, masked=masked)
        for producer in self._producers.values():
            producer.tally = Tally()
        return Batch(tuple(groups), metrics)

    async def _hand_out_once(self, step: int) -> Batch:
        batch = await self._hand_out(step)
        self._handed_out = step, batch
        return batch

    def _place(self, group: Group) -> tuple[int, int]:
        return list(self._producers).index(group.task_set), group.draw

    def _context(self, producer: TaskSetProducer) -> ProduceContext:
        # In a colocated run the last step oversamples too, so that it need not wait for its slowest groups.
        last_step = None if self._takes_turns else self._settings.last_step
        ahead = horizon_limit(self._progress, producer.name, self._version, producer.horizon, last_step)
        return producer.context(ahead, takes_turns=self._takes_turns, slot_is_free=self._scheduler.slot_is_free)

    def _check_running(self, verb: str) -> None:
        if self._crash is not None:
            raise self._crash
        if self._state is ManagerState.FINISHED:
            raise RunError(f"production cannot {verb}: it has ended", remedy="open the run again")

    def _check_next(self, step: int) -> None:
        if step != self._progress.next_consumer_step:
            raise RunError(
                f"step {step} was asked for, but step {self._progress.next_consumer_step} is next",
                remedy="take the steps one by one",
            )

    def _stuck(self, step: int) -> StalledError:
        return StalledError(
            f"step {step} lacks groups, none is in flight, and none may start\n{self.describe()}",
            remedy="continue production if it is paused; otherwise this is a bug of ours: please report it",
            waits_for=f"the batch of step {step}",
        )
