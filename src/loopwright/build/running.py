"""A run that is open: what the command line and Python programs can do with it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from loopwright.build.lineage import Lineage
from loopwright.build.lineages import Lineages
from loopwright.build.plain_rollouts import sample_groups
from loopwright.build.standing import Standing
from loopwright.build.training import Trainer
from loopwright.config import RunConfig
from loopwright.errors import ConfigError, RunError
from loopwright.ports import Learner, Tracker
from loopwright.runs.durable import draft_of
from loopwright.runs.report.gather import write_report
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.track.redacting import redacting_errors
from loopwright.trainers.step import Step
from loopwright.types import Rollout


@dataclass(slots=True)
class Run:
    """A run that is open: its folder is locked, its model loaded, its engine running.

    It does one thing at a time: steps, evaluations and rollouts use the same engine and the same weights. If a rank of
    the learner is lost, the learner, the tracker and the trainer are others from then on: those of the next lineage,
    which goes on from the last checkpoint.
    """

    _standing: Standing
    _lineages: Lineages
    _closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    _has_stepped: bool = False
    _busy_with: str | None = None
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _is_closed: bool = False

    @property
    def folder(self) -> RunFolder:
        return self._standing.folder

    @property
    def config(self) -> RunConfig:
        return self._standing.config

    @property
    def learner(self) -> Learner:
        return self._lineages.present.learner

    @property
    def trainer(self) -> Trainer:
        return self._lineages.present.trainer

    @property
    def tracker(self) -> Tracker:
        return self._lineages.present.tracker

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def version(self) -> int:
        """The version of the weights: how many train steps they have had."""
        return self.learner.version

    @property
    def is_finished(self) -> bool:
        """Whether the last step and all work that is due after it are done."""
        return self._lineages.is_open and self.trainer.is_finished

    @property
    def lost_steps(self) -> range:
        """The steps that are lost: a rank of the learner was lost, and the run was to stop, so it goes on from its last
        checkpoint when it is opened again."""
        return self._lineages.lost_steps

    async def train(self) -> bool:
        """Train to the end, export the model and write the report. False if the run was stopped before."""
        async for _ in self.steps():
            pass
        return self.is_finished

    async def steps(self) -> AsyncIterator[Step]:
        """Train step by step, to the end or until the run is to stop. A caller that leaves the loop may call this
        again. After a loss of the learner, the steps since the last checkpoint come once more."""
        while (step := await self.step()) is not None:
            yield step
            if step.is_last:
                return

    async def step(self) -> Step | None:
        """Train one step. After the last one, the model is exported and the report is written.

        None when no step is left, or when the run is to stop.
        """
        with self._busy("a step"):
            self._has_stepped = True
            return await self._lineages.outlived(self._step)

    async def evaluate(self) -> Mapping[str, float]:
        """Evaluate the current weights on the evaluation tasks. The metrics are also logged for the current step."""
        if self.config.eval is None:
            raise ConfigError("the config has nothing to evaluate on", remedy="add eval.data and eval.agent to it")
        with self._busy("an evaluation"):
            metrics = await self._lineages.outlived(lambda lineage: lineage.trainer.evaluate())
        if metrics is None:
            raise RunError("the evaluation was not finished: the run is to stop", remedy="open the run again")
        return metrics

    async def roll_out(self, groups: int) -> list[Rollout]:
        """Sample rollouts of `groups` tasks with the current weights, and score them. Nothing is trained or stored.

        Every call takes the first training tasks, so that two calls can be compared.
        """
        if not hasattr(groups, "__index__") or groups < 1:
            raise RunError(f"{groups!r} groups cannot be sampled", remedy="ask for 1 group or more")

        async def sample(lineage: Lineage) -> list[Rollout]:
            async with lineage.trainer.sampling():
                engine, version = self._standing.engines.engine, lineage.learner.version
                return await sample_groups(self._standing.sampling, lineage.runner, engine, version, int(groups))

        with self._busy("rollouts"):
            rollouts = await self._lineages.outlived(sample)
        if rollouts is None:
            raise RunError("nothing more is sampled: the run is to stop", remedy="open the run again")
        return rollouts

    def trajectories(self, step: int | None = None) -> Iterator[Rollout]:
        """The stored rollouts that train step `step` was trained on, or those of all steps, one after the other."""
        if not self.folder.rollouts.is_file():
            raise RunError("the run stores no rollouts", remedy="set buffer.kind to sqlite")
        stored = StoredRun(self.folder.rollouts)
        steps = stored.steps()
        if step is not None and step not in steps:
            known = f"steps {steps[0]} to {steps[-1]} are" if steps else "none is"
            raise RunError(f"no rollouts of step {step} are stored", remedy=f"name a step that was trained: {known}")
        return (rollout for one in (steps if step is None else (step,)) for rollout in stored.rollouts(one))

    def stop(self) -> None:
        """End the training after a checkpoint. Rollouts in flight are kept for the next time."""
        self._standing.settings.stop.set()

    async def close(self) -> None:
        """Close the run. Steps that were trained since the latest checkpoint are saved first.

        If another task trains with it, that training is stopped as by `stop`, and waited for.
        """
        await self.__aexit__(None, None, None)

    def closed_by(self, closing: AsyncExitStack) -> Run:
        """This run, which will close `closing` when it is closed."""
        self._closing = closing
        return self

    async def leave(self) -> None:
        """Save what `step` has trained, and end production."""
        await self.trainer.close(save=self._has_stepped and self._lineages.is_open)

    async def __aenter__(self) -> Run:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._busy_with is not None:
            self.stop()
            await self._idle.wait()
        self._is_closed = True
        await self._closing.__aexit__(kind, error, trace)

    @contextmanager
    def _busy(self, what: str) -> Iterator[None]:
        if self._is_closed:
            raise RunError("the run is closed", remedy="open it again")
        if self._busy_with is not None:
            raise RunError(f"the run is busy with {self._busy_with}", remedy="await that first")
        self._busy_with, self._standing.ending.failed = what, None
        self._idle.clear()
        try:
            with redacting_errors(self._standing.redact):
                yield
        except BaseException as error:
            self._standing.ending.failed = error
            raise
        finally:
            self._busy_with = None
            self._idle.set()

    async def _step(self, lineage: Lineage) -> Step | None:
        if lineage.learner.version < self.config.trainer.steps:
            # Only a finished run has an exported model, and this one goes on.
            shutil.rmtree(self.folder.export, ignore_errors=True)
        step = await lineage.trainer.advance()
        if step is None or step.is_last:
            await self._conclude()
        return step

    async def _conclude(self) -> None:
        if self.is_finished and self.config.trainer.export and not self.folder.export.exists():
            await self._export()
        if self.config.track.report:
            write_report(self.folder)

    async def _export(self) -> None:
        draft = draft_of(self.folder.export)
        shutil.rmtree(draft, ignore_errors=True)
        with self.tracker.span("export", step=self.learner.version):
            await self.learner.export(draft)
            draft.rename(self.folder.export)


class RunOpening:
    """A run that is about to be opened: by `async with`, which also closes it, or by `await`; then call `close`."""

    def __init__(self, open: Callable[[], Awaitable[Run]]) -> None:
        self._open = open
        self._run: Run | None = None

    def __await__(self) -> Generator[Any, None, Run]:
        return self._open().__await__()

    async def __aenter__(self) -> Run:
        self._run = await self._open()
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._run is not None:
            await self._run.__aexit__(kind, error, trace)
