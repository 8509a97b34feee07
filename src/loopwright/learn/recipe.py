"""What is optimised, and how: everything that a learner is told once."""

from __future__ import annotations

from dataclasses import dataclass, field

from loopwright.core.advantage import Advantage
from loopwright.learn.importance import Importance
from loopwright.learn.kl import KlTerm
from loopwright.learn.losses import Clip, TokenLoss
from loopwright.learn.sft import SftTerm
from loopwright.types import Aggregate, Schedule


@dataclass(frozen=True, slots=True)
class Recipe:
    """`clip` is where the loss clips, for the metrics alone; `constant_length` is used by that aggregate alone."""

    advantage: Advantage
    loss: TokenLoss
    temperature: float
    steps: int
    constant_length: int
    aggregate: Aggregate = Aggregate.SEQUENCE
    importance: Importance = field(default_factory=Importance)
    clip: Clip | None = None
    kl: KlTerm | None = None
    sft: SftTerm | None = None
    loss_without_advantage: bool = False
    """Whether the loss may teach something to a chain whose advantage is 0. Ours cannot; a user's may."""
    lr: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: int = 0
    max_grad_norm: float | None = 1.0
    mini_batches: int = 1
    micro_batch_tokens: int = 4096

    @property
    def trains_idle_chains(self) -> bool:
        """Whether chains with advantage 0 have a part in the loss."""
        return self.loss_without_advantage or self.kl is not None
