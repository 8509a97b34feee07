"""What is optimised, and how: all settings that a learner gets when it is built."""

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
    """`clip` holds the bounds of the loss, for the metrics only. Only `Aggregate.CONSTANT` uses `constant_length`."""

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
    """Whether the loss can have a gradient for a chain with advantage 0. The built-in losses cannot; a user's may."""
    lr: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: int = 0
    max_grad_norm: float | None = 1.0
    mini_batches: int = 1
    micro_batch_tokens: int = 4096
    checkpoint_activations: bool = False
    token_numbers: bool = True
    """Whether a step reports numbers of each trained token. They cost one copy off the device per micro-batch."""
    lends_device: bool = False
    """Whether engines in other processes may compute on the learner's device between steps, and need its memory."""

    @property
    def trains_idle_chains(self) -> bool:
        """Whether chains with advantage 0 contribute to the loss."""
        return self.loss_without_advantage or self.kl is not None
