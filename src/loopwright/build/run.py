"""Opening a run: a new one, or the one in its folder, from its latest checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.build import parts
from loopwright.config import Loaded, RunConfig
from loopwright.engines.torch.engine import TorchEngine
from loopwright.learn.learner import TorchLearner
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.ports import ResumePlan, Storage, Tracker
from loopwright.produce import SyncProducer
from loopwright.track.console import Console
from loopwright.track.fanout import Trackers
from loopwright.track.jsonl import JsonlTracker
from loopwright.trainers.checkpoint import Checkpoint, Checkpoints
from loopwright.trainers.colocate import ColocateTrainer
from loopwright.trainers.evaluator import EvalMode, Evaluator
from loopwright.trainers.report import write_report
from loopwright.trainers.run_folder import RunFolder
from loopwright.weights.in_process import SharedWeights


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is open: its folder is locked, its model loaded, its engine running."""

    folder: RunFolder
    config: RunConfig
    learner: TorchLearner
    trainer: ColocateTrainer
    tracker: Tracker

    async def train(self) -> bool:
        """Train to the end, export the model and write the report. False when the run was stopped before."""
        finished = await self.trainer.train()
        if finished and self.config.trainer.export:
            with self.tracker.span("export", step=self.learner.version):
                await self.learner.export(self.folder.export)
        if self.config.track.report:
            write_report(self.folder)
        return finished


@dataclass(frozen=True, slots=True)
class _Begun:
    """Where a run stands when it is opened."""

    checkpoints: Checkpoints
    latest: Checkpoint | None
    plans: dict[str, ResumePlan]


@asynccontextmanager
async def open_run(
    loaded: Loaded,
    *,
    cache: Path,
    stop: asyncio.Event,
    fresh: bool = False,
    allow_config_change: bool = False,
    console: Console | None = None,
) -> AsyncIterator[Run]:
    """Open the run that a config describes. Setting `stop` ends its training after a checkpoint.

    `cache` is where converted models are kept. The user's own code is loaded before the model: its mistakes show at
    once.
    """
    config, snapshot = loaded.config, loaded.config.model_dump(mode="json")
    async with AsyncExitStack() as stack:
        path = Path(config.trainer.run_dir)
        opened = RunFolder.open(path, snapshot, fresh=fresh, allow_config_change=allow_config_change)
        folder = stack.enter_context(opened)
        judgers = {
            name: await stack.enter_async_context(parts.make_judger(loaded, name))
            for name in parts.judger_names(config)
        }
        train_sets, eval_sets = parts.train_sets(loaded, judgers), parts.eval_sets(loaded, judgers)
        storage = await stack.enter_async_context(SqliteStorage(folder.rollouts))
        begun = await _begin(config, folder, storage)
        compute = stack.enter_context(ComputeThread())
        model = await compute.run(parts.make_model, loaded, cache)
        learner = await _learner(config, model, compute, folder, begun.latest)
        engine = await stack.enter_async_context(
            TorchEngine(model, compute, max_batch=config.rollout.engine.max_batch, version=learner.version)
        )
        tracker = _tracker(folder, learner.version, console)
        if console is not None:
            stack.enter_context(console)
        on_rollout = console.on_rollout if console else None
        runner = parts.make_runner(config, engine, model)
        producer = SyncProducer(
            train_sets, runner, storage, parts.produce_settings(config), plans=begun.plans, on_rollout=on_rollout
        )
        evaluator = None
        if config.eval is not None and eval_sets:
            modes = [mode for mode in EvalMode if getattr(config.eval, mode)]
            evaluator = Evaluator(eval_sets, modes, runner, storage, tracker, on_rollout=on_rollout)
        trainer = ColocateTrainer(
            producer=producer,
            engine=engine,
            learner=learner,
            weights=SharedWeights(engine),
            evaluator=evaluator,
            checkpoints=begun.checkpoints,
            tracker=tracker,
            intervals=parts.intervals(config),
            stop=stop,
            owes_evaluation=begun.latest is None or bool(begun.latest.state["owes_evaluation"]),
        )
        yield Run(folder, config, learner, trainer, tracker)


async def _begin(config: RunConfig, folder: RunFolder, storage: Storage) -> _Begun:
    """Find the latest checkpoint and bring the ledger back to it (D1, D3)."""
    checkpoints = Checkpoints(folder.checkpoints, config.trainer.keep_checkpoints)
    latest = checkpoints.latest()
    step = latest.step if latest else 0
    draws = latest.state["next_draws"] if latest else {}
    plans = {}
    for task_set in config.task_sets:
        next_draw = draws.get(task_set.name, 0) if config.trainer.deterministic else None
        plans[task_set.name] = await storage.resume(task_set.name, step=step, next_draw=next_draw)
    return _Begun(checkpoints, latest, plans)


async def _learner(
    config: RunConfig, model: LoadedModel, compute: ComputeThread, folder: RunFolder, latest: Checkpoint | None
) -> TorchLearner:
    model.tokenizer.save_pretrained(folder.tokenizer)
    learner = TorchLearner(model, parts.recipe(config), compute)
    if latest is not None:
        await learner.load(latest.path)
    return learner


def _tracker(folder: RunFolder, step: int, console: Console | None) -> Tracker:
    jsonl = JsonlTracker(folder.path)
    jsonl.rewind(step)
    return Trackers(jsonl, console) if console else jsonl
