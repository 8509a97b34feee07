"""The order of a disaggregated run, and how it ends: at the last step, by a signal, by whoever broke, by a stall."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopwright.buffer.storage.memory import MemoryStorage
from loopwright.errors import BudgetError, CheckpointError, EngineError, LearnerError, RunError, StalledError
from loopwright.ports import StepReport, Storage, WeightSink
from loopwright.produce import Batch
from loopwright.runs.checkpoint import Checkpoint, Checkpoints
from loopwright.testing import ScriptedEngine
from loopwright.trainers.disaggregated import DisaggregatedTrainer
from loopwright.trainers.evaluator import EvalReport
from loopwright.trainers.intervals import Intervals
from loopwright.trainers.step import Step
from loopwright.trainers.upkeep import Upkeep
from loopwright.trainers.watchdog import Watchdog
from loopwright.types import (
    Episode,
    Group,
    PauseMode,
    Rollout,
    RolloutKey,
    Scored,
    Task,
    Timing,
    TokenChain,
    TrainedRollout,
)


def group(draw: int, version: int) -> Group:
    task = Task.ask(f"t{draw}", "say 1", truth=1)
    sampled = np.array([False, True, True])
    chain = TokenChain(np.array([5, 6, 7]), sampled, np.where(sampled, -1, 0), np.where(sampled, version, -1))
    rollout = Rollout(RolloutKey("train", draw, 0), task, Episode((), (chain,)), Scored(1.0), Timing(0.0))
    return Group("train", draw, task, (rollout,))


class Hand:
    """Production by hand: a batch of one group is ready for each step, unless the test says otherwise."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.version: int | None = None
        self.batches: dict[int, list[Batch | None]] = {}
        """What `take` gives for a step instead, one after the other; None is never ready."""
        self.breaks = asyncio.Event()
        self.turns = 0
        self.full_at: int | None = None
        """The step whose consumption cannot be recorded."""
        self.drains: asyncio.Event | None = None
        self.running = asyncio.Event()
        self.idle_after: set[int] = set()
        """The steps after which slots stand empty for want of newer weights."""
        self._taken = 0
        self._finished = asyncio.Event()

    async def produce_loop(self) -> None:
        while not self._finished.is_set():
            await self.running.wait()
            self.turns += 1
            await asyncio.sleep(0.001)
            self._check()

    async def take(self, step: int) -> Batch:
        self.log.append(f"take {step}")
        self._taken = step
        self._check()
        scripted = self.batches.get(step)
        batch = scripted.pop(0) if scripted else Batch((group(step, self.version or 0),), {"reward/mean": 1.0})
        if batch is None:
            await self.breaks.wait()
            self._check()
        assert batch is not None
        return batch

    @property
    def is_going_on(self) -> bool:
        return self.running.is_set() and not self._finished.is_set()

    @property
    def wants_weights(self) -> bool:
        return self._taken in self.idle_after

    def _check(self) -> None:
        if self.breaks.is_set():
            raise BudgetError("every group fails", remedy="mend the judger")

    async def consume(self, groups: Sequence[Group], step: int, trained: Sequence[TrainedRollout] = ()) -> None:
        if step == self.full_at:
            raise RunError("the disk is full", remedy="free some disk space")
        self.log.append(f"consume {step}")

    async def pause(self, mode: PauseMode) -> None:
        self.log.append(f"pause {mode}")
        self.running.clear()
        if self.drains is not None:
            await self.drains.wait()

    async def continue_(self, version: int) -> None:
        self.log.append(f"continue {version}")
        self.version = version
        self.running.set()

    async def save(self) -> Mapping[str, Any]:
        return {"next_draws": {"train": 7}}

    async def shutdown(self) -> None:
        self.log.append("shutdown")
        self._finished.set()
        self.running.set()
        if self.full_at is not None:
            raise RunError("what is under way cannot be stored: the disk is full", remedy="free some disk space")


class Pupil:
    """A learner that counts. `lesson` is awaited in every step."""

    describes = "nothing"

    def standing(self) -> tuple[()]:
        return ()

    def __init__(self, log: list[str], version: int = 0) -> None:
        self.log = log
        self.version = version
        self.lesson: Callable[[], Any] | None = None

    async def step(self, groups: Sequence[Group]) -> StepReport:
        if self.lesson is not None:
            await self.lesson()
        self.version += 1
        self.log.append(f"train {self.version}")
        return StepReport(self.version, {"loss": 0.5})

    async def save(self, folder: Path) -> None:
        self.log.append(f"save {self.version}")

    async def load(self, folder: Path) -> None: ...

    async def export(self, folder: Path) -> None: ...

    async def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> tuple[float, ...]:
        raise NotImplementedError

    async def publish(self, sink: WeightSink) -> None:
        raise NotImplementedError


class Wire:
    """Publishes to the engine, unless it is broken."""

    def __init__(self, log: list[str], engine: ScriptedEngine) -> None:
        self.log = log
        self.engine = engine
        self.broken_at: int | None = None

    async def publish(self, version: int) -> dict[str, float]:
        if version == self.broken_at:
            raise EngineError("the weights file is gone", remedy="free some shared memory")
        self.log.append(f"publish {version}")
        await self.engine.load(version)
        return {"engine/0/proof_max": 1e-5}


class Examiner:
    """An evaluator that notes whether anything was produced meanwhile, and by which weights it was answered."""

    def __init__(self, log: list[str], production: Hand, engine: ScriptedEngine) -> None:
        self.log = log
        self.production = production
        self.engine = engine

    async def evaluate(self, step: int) -> EvalReport:
        assert not self.production.is_going_on, "evaluation runs before production resumes"
        self.log.append(f"evaluate {step} with {self.engine.version}")
        return EvalReport({"eval/eval/greedy/reward": 1.0})


class Ledger(MemoryStorage):
    """A storage that notes when it is forced to disk and when it may archive. Its disk may be full."""

    def __init__(self, log: list[str], checkpoints: Checkpoints) -> None:
        super().__init__()
        self.log = log
        self.checkpoints = checkpoints
        self.full = False

    async def flush(self) -> None:
        if self.full:
            raise RunError("rollouts.sqlite: no space left", remedy="free some disk space")
        self.log.append(f"flush beside {self.checkpoints.steps()}")

    async def archive(self, step: int) -> None:
        self.log.append(f"archive {step} beside {self.checkpoints.steps()}")


class Notes:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.logged: dict[int, dict[str, float]] = {}
        self.spans: list[str] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.logged.setdefault(step, {}).update(metrics)

    @contextmanager
    def span(self, name: str, *, step: int, **facts: Any) -> Iterator[None]:
        self.spans.append(name)
        yield


@dataclass
class Apart:
    """A disaggregated run of fakes."""

    folder: Path
    version: int = 0
    steps: int = 4
    evaluate: int = 0
    checkpoint: int = 0
    sync: int = 1
    on_demand: bool = False
    in_flight: PauseMode = PauseMode.ABORT
    stall: float = 5.0
    restarts: int = 0
    log: list[str] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    notes: Notes = field(default_factory=Notes)
    storage: Storage = field(default_factory=MemoryStorage)

    def __post_init__(self) -> None:
        self.engine = ScriptedEngine(["1"])
        self.production = Hand(self.log)
        self.learner = Pupil(self.log, self.version)
        self.wire = Wire(self.log, self.engine)
        self.checkpoints = Checkpoints(self.folder / "checkpoints", keep=9)

    def trainer(self, *, evaluates: bool = False) -> DisaggregatedTrainer:
        watchdog = Watchdog(
            stop=self.stop,
            seconds=self.stall,
            progress=lambda: self.learner.version,
            describe=lambda: "  1 rollout in flight",
        )
        examiner: Any = Examiner(self.log, self.production, self.engine) if evaluates else None
        upkeep = Upkeep(
            learner=self.learner,
            evaluator=examiner,
            checkpoints=self.checkpoints,
            tracker=self.notes,
            watchdog=watchdog,
            storage=self.storage,
            archives=True,
        )
        manager: Any = self.production
        return DisaggregatedTrainer(
            manager=manager,
            engine=self.engine,
            learner=self.learner,
            weights=self.wire,
            upkeep=upkeep,
            tracker=self.notes,
            intervals=Intervals(self.steps, self.evaluate, self.checkpoint, self.sync, self.on_demand),
            in_flight=self.in_flight,
            watchdog=watchdog,
            restarts=lambda: self.restarts,
            owes_evaluation=evaluates,
        )


def latest(run: Apart) -> Checkpoint:
    found = run.checkpoints.latest()
    assert found is not None
    return found


async def test_the_whole_order_with_a_sync_interval(tmp_path):
    run = Apart(tmp_path, steps=3, evaluate=2, checkpoint=2, sync=2, in_flight=PauseMode.KEEP)
    assert await run.trainer(evaluates=True).train()
    assert run.log == [
        *["publish 0", "evaluate 0 with 0", "continue 0"],
        *["take 1", "train 1", "consume 1"],
        *["take 2", "train 2", "consume 2", "pause keep", "publish 2", "evaluate 2 with 2", "save 2", "continue 2"],
        *["take 3", "train 3", "consume 3", "pause keep", "publish 3", "evaluate 3 with 3", "save 3"],
        "shutdown",
    ]


async def test_production_goes_on_while_the_learner_trains(tmp_path):
    run = Apart(tmp_path, steps=2)

    async def until_something_was_made() -> None:
        before = run.production.turns
        while run.production.turns == before:
            await asyncio.sleep(0.001)

    run.learner.lesson = until_something_was_made
    assert await asyncio.wait_for(run.trainer().train(), 5)


async def test_an_empty_batch_brings_newer_weights_and_the_same_step_is_asked_for_again(tmp_path):
    run = Apart(tmp_path, steps=2, sync=4)
    run.production.batches = {2: [Batch((), {})]}
    await run.trainer().train()
    at = run.log.index("take 2")
    assert run.log[at : at + 5] == ["take 2", "pause abort", "publish 1", "continue 1", "take 2"]


@pytest.mark.parametrize(("on_demand", "published"), [(False, [0, 4]), (True, [0, 2, 4])])
async def test_production_that_stands_still_gets_newer_weights_on_demand(tmp_path, on_demand, published):
    run = Apart(tmp_path, steps=4, sync=4, on_demand=on_demand)
    run.production.idle_after = {2}
    await run.trainer().train()
    assert [line for line in run.log if line.startswith("publish")] == [f"publish {step}" for step in published]


async def test_a_run_that_goes_on_starts_paused_at_its_checkpoint_with_the_engine_brought_to_it_first(tmp_path):
    run = Apart(tmp_path, version=3)
    await run.trainer().train()
    assert run.log[:3] == ["publish 3", "continue 3", "take 4"]
    assert run.engine.version == 4


async def test_a_finished_run_produces_nothing_more(tmp_path):
    run = Apart(tmp_path, version=4)
    assert await run.trainer(evaluates=True).train()
    assert run.log == ["publish 4", "evaluate 4 with 4", "shutdown"]


async def test_a_producer_that_breaks_fails_training_at_once_with_its_own_error(tmp_path):
    run = Apart(tmp_path, version=2, stall=60.0)
    run.production.batches = {3: [None]}
    asyncio.get_running_loop().call_later(0.01, run.production.breaks.set)
    with pytest.raises(BudgetError, match="every group fails"):
        await asyncio.wait_for(run.trainer().train(), 5)
    assert run.log[-2:] == ["shutdown", "save 2"]


async def test_a_producer_that_breaks_during_a_train_step_ends_the_run_after_it_and_the_step_is_kept(tmp_path):
    run = Apart(tmp_path, sync=4)

    async def breaks() -> None:
        run.production.breaks.set()
        await asyncio.sleep(0.01)

    run.learner.lesson = breaks
    with pytest.raises(BudgetError):
        await run.trainer().train()
    assert run.log[-2:] == ["shutdown", "save 1"]
    assert "consume 1" in run.log
    assert "train 2" not in run.log
    assert latest(run).step == 1


async def test_a_producer_that_breaks_in_the_last_step_is_not_passed_over(tmp_path):
    run = Apart(tmp_path, steps=1)

    async def breaks() -> None:
        run.production.breaks.set()
        await asyncio.sleep(0.01)

    run.learner.lesson = breaks
    with pytest.raises(BudgetError):
        await run.trainer().train()
    assert latest(run).step == 1


async def test_a_signal_stops_admission_first_and_then_saves(tmp_path):
    run = Apart(tmp_path, version=1)
    run.production.batches = {3: [None]}
    asyncio.get_running_loop().call_later(0.05, run.stop.set)
    assert not await run.trainer().train()
    assert run.log[-3:] == ["take 3", "shutdown", "save 2"]
    assert latest(run).state == {"next_draws": {"train": 7}}


async def test_a_signal_does_not_wait_for_rollouts_that_drain(tmp_path):
    run = Apart(tmp_path, in_flight=PauseMode.DRAIN)
    run.production.drains = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, run.stop.set)
    assert not await asyncio.wait_for(run.trainer().train(), 5)
    assert run.log[-3:] == ["pause drain", "shutdown", "save 1"]


async def test_a_run_in_which_nothing_moves_saves_and_says_who_waits_on_whom(tmp_path):
    run = Apart(tmp_path, version=1, stall=0.05)
    run.production.batches = {3: [None]}
    with pytest.raises(StalledError) as caught:
        await run.trainer().train()
    assert "the trainer waits for a batch for step 3\n  1 rollout in flight" in caught.value.message
    assert run.log[-2:] == ["shutdown", "save 2"]


async def test_rollouts_that_never_drain_end_the_run_too(tmp_path):
    run = Apart(tmp_path, in_flight=PauseMode.DRAIN, stall=0.05)
    run.production.drains = asyncio.Event()
    with pytest.raises(StalledError, match="the rollouts under way to drain"):
        await run.trainer().train()


async def test_weights_that_cannot_be_published_end_the_run_but_the_step_is_saved(tmp_path):
    run = Apart(tmp_path)
    run.wire.broken_at = 2
    with pytest.raises(EngineError, match="the weights file is gone"):
        await run.trainer().train()
    assert latest(run).step == 2


async def test_what_broke_first_is_told_also_if_the_checkpoint_after_it_fails(tmp_path):
    run = Apart(tmp_path)
    run.wire.broken_at = 2
    (tmp_path / "checkpoints").write_text("no folder")
    with pytest.raises(EngineError, match="the weights file is gone") as caught:
        await run.trainer().train()
    assert "the checkpoint of step 2 could not be written" in caught.value.__notes__[0]


@pytest.mark.parametrize("error", [LearnerError("the loss is NaN", remedy="lower learner.lr"), MemoryError("no room")])
async def test_a_train_step_that_went_wrong_is_not_saved(tmp_path, error):
    """Whatever went wrong: some of its updates may have been made."""
    run = Apart(tmp_path, version=1)

    async def breaks() -> None:
        raise error

    run.learner.lesson = breaks
    with pytest.raises(type(error)):
        await run.trainer().train()
    assert run.checkpoints.latest() is None
    assert run.log[-1] == "shutdown"


async def test_a_step_whose_groups_could_not_be_recorded_is_not_saved(tmp_path):
    """With its checkpoint the next run would train the same groups again."""
    run = Apart(tmp_path, checkpoint=1)
    run.production.full_at = 2
    with pytest.raises(RunError, match="the disk is full"):
        await run.trainer().train()
    assert run.log[-2:] == ["train 2", "shutdown"]
    assert latest(run).step == 1
    assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"production"}), "it is waited for even so"


async def test_what_is_stored_of_a_step_is_on_disk_before_its_checkpoint(tmp_path):
    """Or a power cut in between would leave a checkpoint whose groups are trained again."""
    run = Apart(tmp_path, steps=2, checkpoint=1)
    run.storage = Ledger(run.log, run.checkpoints)
    await run.trainer().train()
    kept = [line for line in run.log if line.startswith(("consume", "flush", "save", "archive"))]
    assert kept == [
        *["consume 1", "flush beside ()", "save 1", "archive 1 beside (1,)"],
        *["consume 2", "flush beside (1,)", "save 2", "archive 2 beside (1, 2)"],
    ]


async def test_without_what_is_stored_of_a_step_there_is_no_checkpoint_of_it(tmp_path):
    run = Apart(tmp_path, checkpoint=1)
    run.storage = Ledger(run.log, run.checkpoints)
    run.storage.full = True
    with pytest.raises(CheckpointError, match=r"checkpoint of step 1 could not be written.*no space left") as caught:
        await run.trainer().train()
    assert "free some disk space" in caught.value.remedy
    assert run.checkpoints.latest() is None
    assert run.log[-1] == "shutdown"


async def test_a_storage_that_fails_after_something_else_did_does_not_hide_it(tmp_path):
    run = Apart(tmp_path)
    run.storage = Ledger(run.log, run.checkpoints)
    run.storage.full = True
    run.wire.broken_at = 2
    with pytest.raises(EngineError, match="the weights file is gone") as caught:
        await run.trainer().train()
    assert "no space left" in caught.value.__notes__[0]


async def test_a_step_counts_the_restarts_since_the_one_before(tmp_path):
    run = Apart(tmp_path, steps=3)

    async def loses_an_engine() -> None:
        run.restarts += 2 if run.learner.version == 1 else 0

    run.learner.lesson = loses_an_engine
    await run.trainer().train()
    assert [run.notes.logged[step]["engine/restarts"] for step in (1, 2, 3)] == [0.0, 2.0, 0.0]


async def test_restarts_of_engines_before_a_lost_learner_are_not_counted_again(tmp_path):
    run = Apart(tmp_path, steps=1)
    run.restarts = 3
    await run.trainer().train()
    assert run.notes.logged[1]["engine/restarts"] == 0.0


async def test_every_step_says_where_the_time_went(tmp_path):
    run = Apart(tmp_path, steps=3, sync=2)
    await run.trainer().train()
    for step in (1, 2, 3):
        numbers = run.notes.logged[step]
        assert {"time/wait", "time/train", "time/sync", "learner/loss", "reward/mean"} <= set(numbers)
        assert 0 <= numbers["time/idle_share"] <= 1
    assert {"wait", "train", "sync"} <= set(run.notes.spans)


async def advancing(trainer: DisaggregatedTrainer) -> AsyncIterator[Step]:
    while (step := await trainer.advance()) is not None:
        yield step


async def test_steps_one_by_one_are_the_whole_run(tmp_path):
    run = Apart(tmp_path, steps=3, evaluate=2, checkpoint=2, sync=2)
    trainer = run.trainer(evaluates=True)
    steps = [step async for step in advancing(trainer)]
    whole = Apart(tmp_path / "whole", steps=3, evaluate=2, checkpoint=2, sync=2)
    assert await whole.trainer(evaluates=True).train()
    assert run.log == whole.log
    assert trainer.is_finished
    assert [(step.number, step.is_last) for step in steps] == [(1, False), (2, False), (3, True)]
    assert ["eval/eval/greedy/reward" in step.metrics for step in steps] == [False, True, True]
    assert all(step.metrics == run.notes.logged[step.number] for step in steps)


async def test_production_goes_on_between_steps_until_the_run_is_closed(tmp_path):
    run = Apart(tmp_path)
    trainer = run.trainer()
    await trainer.advance()
    before = run.production.turns
    while run.production.turns == before:
        await asyncio.sleep(0.001)
    await trainer.close(save=False)
    assert run.log[-1] == "shutdown"
    assert run.checkpoints.latest() is None
    assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"production"})


async def test_who_leaves_between_steps_keeps_what_was_learned(tmp_path):
    run = Apart(tmp_path)
    trainer = run.trainer()
    await trainer.advance()
    await trainer.close(save=True)
    assert run.log[-2:] == ["shutdown", "save 1"]
    await trainer.close(save=True)
    assert run.log[-1] == "save 1"


@pytest.mark.parametrize("sync", [1, 4])
async def test_an_evaluation_between_steps_is_of_the_newest_weights_while_production_is_paused(tmp_path, sync):
    run = Apart(tmp_path, steps=2, sync=sync)
    trainer = run.trainer(evaluates=True)
    await trainer.evaluate()
    assert run.log == ["publish 0", "evaluate 0 with 0"], "and it is not owed any more"
    await trainer.advance()
    at = len(run.log)
    await trainer.evaluate()
    assert run.log[at:] == ["pause abort", "publish 1", "evaluate 1 with 1"]
    await trainer.advance()
    assert run.log[at + 3 : at + 5] == ["continue 1", "take 2"]
    await trainer.evaluate()
    assert run.log[-2:] == ["shutdown", "evaluate 2 with 2"]


async def test_after_an_error_no_step_follows(tmp_path):
    run = Apart(tmp_path)
    run.wire.broken_at = 2
    trainer = run.trainer()
    await trainer.advance()
    with pytest.raises(EngineError):
        await trainer.advance()
    saved = list(run.log)
    with pytest.raises(RunError, match="a step was broken"):
        await trainer.advance()
    with pytest.raises(RunError, match="a step was broken"):
        await trainer.evaluate()
    await trainer.close(save=True)
    assert run.log == saved


async def test_a_step_that_is_cancelled_ends_production_and_what_was_learned_before_is_kept(tmp_path):
    run = Apart(tmp_path)
    run.production.batches = {2: [None]}
    trainer = run.trainer()
    await trainer.advance()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(trainer.advance(), 0.05)
    assert run.log[-1] == "shutdown"
    with pytest.raises(RunError, match="a step was cancelled"):
        await trainer.advance()
    await trainer.close(save=True)
    assert run.log[-1] == "save 1"


async def test_a_step_that_is_cancelled_while_it_learns_is_finished_and_kept(tmp_path):
    run = Apart(tmp_path)
    trainer = run.trainer()
    await trainer.advance()
    run.learner.lesson = lambda: asyncio.sleep(0.2)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(trainer.advance(), 0.05)
    await trainer.close(save=True)
    assert run.log[-3:] == ["consume 2", "shutdown", "save 2"]
    assert latest(run).step == 2
    assert "learner/loss" in run.notes.logged[2]


async def test_a_checkpoint_whose_caller_is_cancelled_is_written(tmp_path, monkeypatch):
    run = Apart(tmp_path, checkpoint=2)
    saving = asyncio.Event()

    async def save(folder: Path) -> None:
        saving.set()
        await asyncio.sleep(0.1)

    monkeypatch.setattr(run.learner, "save", save)
    trainer = run.trainer()
    await trainer.advance()
    step = asyncio.create_task(trainer.advance())
    await saving.wait()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert latest(run).step == 2


async def test_an_evaluation_that_is_stopped_is_made_when_the_run_goes_on(tmp_path):
    run = Apart(tmp_path, steps=1)
    trainer = run.trainer(evaluates=True)
    await trainer.evaluate()

    async def stops() -> None:
        run.stop.set()

    run.learner.lesson = stops
    step = await trainer.advance()
    assert step == Step(1, run.notes.logged[1], is_last=True)
    assert not trainer.is_finished
    assert run.log[-2:] == ["shutdown", "save 1"]
