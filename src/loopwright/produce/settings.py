"""What production is told about its sizes, its pace and the failure that it bears."""

from __future__ import annotations

from dataclasses import dataclass

from loopwright.types import PauseMode, ProduceKind, TailBatch


@dataclass(frozen=True, slots=True)
class ProduceSettings:
    """`min_members` None means all of them; `horizon` is how many steps the weights of one version may feed, and
    `sync_interval` how many of them before there are newer ones.

    `last_step` is the one after which nothing is trained: whoever makes groups ahead makes none for later ones.
    """

    groups_per_step: int
    samples_per_task: int
    min_members: int | None = None
    failure_budget: int = 16
    filter_budget: int = 256
    kind: ProduceKind = ProduceKind.SYNC
    horizon: int = 1
    sync_interval: int = 1
    over_sample: float = 0.0
    tail_batch: TailBatch = "immediate"
    in_flight: PauseMode = PauseMode.DRAIN
    last_step: int | None = None

    @property
    def least(self) -> int:
        """Scores that a group needs."""
        return self.min_members or self.samples_per_task
