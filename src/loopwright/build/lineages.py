"""Opens a run's learner again, with all that it took along, when it is lost. The engines and the rest stay."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from loopwright.build.lineage import Lineage, open_lineage
from loopwright.build.standing import Standing, checkpoints_of
from loopwright.errors import LearnerLostError, RunError

T = TypeVar("T")

log = logging.getLogger("loopwright")


class Lineages:
    """The present lineage of an open run. `open_lineages` makes it.

    A loss counts against `learner.max_restarts` until a checkpoint was written after it: what makes no progress must
    end (R4).
    """

    def __init__(self, standing: Standing, first: Lineage, closing: AsyncExitStack) -> None:
        self._standing = standing
        self._closing = closing
        self._restarts = 0
        self._losses = 0
        self._lost_after: int | None = None
        self.present = first
        self.is_open = True
        """Whether the run can go on. If not, its learner is lost, and was not opened again."""

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

    async def close(self) -> None:
        await self._closing.aclose()

    async def _open_again(self, lost: LearnerLostError) -> None:
        """Close all that belongs to the lost learner, and open the next lineage, unless the run is to stop."""
        journal, self.is_open = self._standing.journal, False
        while not self.is_open:
            step, checkpoint = self.present.learner.version, self._counted(lost)
            log.warning("step %d: %s", step, lost.message)
            try:
                with journal.span("learner_lost", step=step, checkpoint=checkpoint, **lost.facts):
                    await self._closing.aclose()
                    if self._standing.settings.stop.is_set():
                        return
                    await self._standing.engines.engine.void_weights()
                    opening = open_lineage(self._standing, restarts=self._restarts)
                    self.present = await self._closing.enter_async_context(opening)
                    self.is_open = True
            except LearnerLostError as again:
                lost = again
        log.warning("the learner is open again, and goes on from step %d", self.present.learner.version)

    def _counted(self, lost: LearnerLostError) -> int:
        """The step of the checkpoint to go on from. Raises `lost` if it is one loss too many."""
        checkpoint = max(checkpoints_of(self._standing.config, self._standing.folder).steps(), default=0)
        self._losses = self._losses + 1 if checkpoint == self._lost_after else 1
        self._lost_after = checkpoint
        if self._losses > self._standing.config.learner.max_restarts:
            lost.add_note(f"losses since the checkpoint of step {checkpoint}: {self._losses} (learner.max_restarts)")
            raise lost
        self._restarts += 1
        return checkpoint


@asynccontextmanager
async def open_lineages(standing: Standing) -> AsyncIterator[Lineages]:
    """The first lineage of this process, and those that follow when a learner is lost."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_lineage(standing, restarts=0))
        lineages = Lineages(standing, first, stack.pop_all())
    try:
        yield lineages
    finally:
        await lineages.close()
