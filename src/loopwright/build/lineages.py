"""Opens a run's learner again, with all that it took along, when it is lost. The engines and the rest stay."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from loopwright.build.lineage import Lineage, open_lineage
from loopwright.build.standing import Standing, checkpoints_of
from loopwright.errors import LearnerLostError, RunError
from loopwright.runs.final_summary import where_it_goes_on

T = TypeVar("T")

log = logging.getLogger("loopwright")


class LineageOpener:
    """Opens a lineage, and the next one each time that a learner is lost. What it has opened is closed by `closing`.

    A loss counts against `learner.max_restarts` until a checkpoint was written after it: what makes no progress must
    end (R4).
    """

    def __init__(self, standing: Standing, closing: AsyncExitStack) -> None:
        self._standing = standing
        self._closing = closing
        self._restarts = 0
        self._losses = 0
        self._lost_after: int | None = None

    @property
    def checkpoint(self) -> int:
        """The step of the checkpoint to go on from, and 0 without one."""
        return max(checkpoints_of(self._standing.config, self._standing.folder).steps(), default=0)

    async def open_first(self) -> Lineage:
        """The first lineage of this process, whose learner may be lost before it is open. Raises the loss if no restart
        is left, or if the run is to stop meanwhile."""
        try:
            return await self._opened()
        except LearnerLostError as lost:
            if (found := await self.open_after(lost, self.checkpoint)) is None:
                raise
            return found

    async def open_after(self, lost: LearnerLostError, step: int) -> Lineage | None:
        """Close all that belongs to a learner that was lost after `step`, and open the next lineage. None if the run is
        to stop instead. Raises the loss if no restart is left."""
        while True:
            checkpoint = self._counted(lost)
            log.warning("step %d: %s", step, lost.message)
            try:
                with self._standing.journal.span("learner_lost", step=step, checkpoint=checkpoint, **lost.facts):
                    await self._closing.aclose()
                    if self._standing.settings.stop.is_set():
                        return None
                    await self._standing.engines.engine.void_weights()
                    lineage = await self._opened()
            except LearnerLostError as again:
                lost = again
            else:
                log.warning("the learner is open again, and goes on from step %d", lineage.learner.version)
                return lineage

    async def _opened(self) -> Lineage:
        return await self._closing.enter_async_context(open_lineage(self._standing, restarts=self._restarts))

    def _counted(self, lost: LearnerLostError) -> int:
        """The step of the checkpoint to go on from. Raises `lost` if it is one loss too many."""
        checkpoint = self.checkpoint
        self._losses = self._losses + 1 if checkpoint == self._lost_after else 1
        self._lost_after = checkpoint
        if self._losses > self._standing.config.learner.max_restarts:
            lost.add_note(f"losses since the checkpoint of step {checkpoint}: {self._losses} (learner.max_restarts)")
            raise lost
        self._restarts += 1
        return checkpoint


class Lineages:
    """The present lineage of an open run. `open_lineages` makes it."""

    def __init__(self, standing: Standing, first: Lineage, opener: LineageOpener) -> None:
        self._standing = standing
        self._opener = opener
        self.present = first
        self.is_open = True
        """Whether the run can go on. If not, its learner is lost, and was not opened again."""
        self.lost_steps = range(0)
        """The steps that are lost with the learner, if the run was to stop instead of making them again."""

    async def outlived(self, work: Callable[[Lineage], Awaitable[T]]) -> T | None:
        """What `work` gives. If the learner is lost meanwhile, `work` is done again from the last checkpoint. None if
        the run is to stop instead.

        Raises the loss when no restart is left.
        """
        while self.is_open:
            try:
                return await work(self.present)
            except LearnerLostError as lost:
                await self._open_again(lost)
        if self._standing.settings.stop.is_set():
            return None
        raise RunError("the run cannot go on: its learner is lost", remedy="open the run again")

    async def _open_again(self, lost: LearnerLostError) -> None:
        """Open the next lineage, unless the run is to stop."""
        self.is_open, step = False, self.present.learner.version
        lineage = await self._opener.open_after(lost, step)
        if lineage is None:
            self.lost_steps = range(self._opener.checkpoint + 1, step + 1)
            log.warning("the run is to stop, so its learner is not opened again. %s", where_it_goes_on(self.lost_steps))
        else:
            self.present, self.is_open = lineage, True


@asynccontextmanager
async def open_lineages(standing: Standing) -> AsyncIterator[Lineages]:
    """The first lineage of this process, and those that follow when a learner is lost."""
    closing = AsyncExitStack()
    try:
        opener = LineageOpener(standing, closing)
        yield Lineages(standing, await opener.open_first(), opener)
    finally:
        await closing.aclose()
