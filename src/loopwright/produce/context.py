"""All that a strategy may know of its task set, at one moment. Numbers are groups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProduceContext:
    """The state of one task set when a strategy is asked."""

    step: int
    """The step whose batch is taken next."""
    target: int
    """Needed for all steps up to `step`."""
    batch: int
    """Still to be taken for `step`."""
    ahead: int
    """Needed for all steps that the present weights may feed."""
    takes_turns: bool
    """Whether nothing is made while a step is trained."""
    available: int
    """Taken so far, or complete."""
    pending: int
    aborted: int
    expired: int
    slot_is_free: bool
    may_look: bool
    """Whether a new task is worth drawing: False when its filter drops everything, and this step has probed enough."""

    @property
    def in_hand(self) -> int:
        """What counts against a limit. An interrupted group was admitted already, and goes on."""
        return self.available + self.pending + self.aborted
