"""Evaluation and checkpoints of new weights. All trainers use this."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopwright.core.together import to_its_end
from loopwright.ports import Learner, Storage, Tracker
from loopwright.runs.checkpoint import Checkpoints
from loopwright.trainers.evaluator import Evaluator
from loopwright.trainers.watchdog import Watchdog

log = logging.getLogger("loopwright")


class Upkeep:
    """Evaluates and saves the learner's weights. The trainer decides when.

    Before a checkpoint is written, the storage's records of its steps are flushed to disk. With `archives`, trained
    payloads are then moved out of the database.
    """

    def __init__(
        self,
        *,
        learner: Learner,
        evaluator: Evaluator | None,
        checkpoints: Checkpoints,
        tracker: Tracker,
        watchdog: Watchdog,
        storage: Storage,
        archives: bool,
    ) -> None:
        self._learner = learner
        self._evaluator = evaluator
        self._checkpoints = checkpoints
        self._tracker = tracker
        self._watchdog = watchdog
        self._storage = storage
        self._archives = archives
        self._tried_to_save = learner.version

    @property
    def owes_checkpoint(self) -> bool:
        """Whether the learner has learned something that nobody has tried to save."""
        return self._tried_to_save != self._learner.version

    async def evaluate(self) -> Mapping[str, float] | None:
        """The metrics. None when the run is to stop meanwhile: the evaluation is then made when it goes on."""
        step = self._learner.version
        if self._evaluator is None:
            return {}
        report = await self._watchdog.wait_or_stop(f"the evaluation after step {step}", self._evaluator.evaluate(step))
        if report is None:
            return None
        self._tracker.log(step, report.metrics)
        for error in report.errors:
            log.warning("step %d: %s", step, error)
        return report.metrics

    async def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save the learner after its latest step, with `state`. Before the first step nothing is saved.

        Once begun, this runs to its end: nobody would hear of a flush that fails after its caller was cancelled.
        """
        if self._learner.version > 0:
            await to_its_end(self._write(self._learner.version, state))

    async def _write(self, step: int, state: Mapping[str, Any]) -> None:
        self._tried_to_save = step
        with self._tracker.span("checkpoint", step=step):
            await self._checkpoints.write(step, self._save, state)
            if self._archives:
                await self._storage.archive(step)

    async def _save(self, folder: Path) -> None:
        # Flush here, so that no checkpoint appears if it fails. Do not retry: after a failed flush, a second one may
        # report success although the data is lost.
        await self._storage.flush()
        await self._learner.save(folder)
