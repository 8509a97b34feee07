"""The schema of the learner: what is optimised, and how."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from loopwright.config.base import Count, CountOrZero, Decay, FromYaml, NotNegative, Positive, Section
from loopwright.types import Aggregate, Schedule


class AdvantageKind(StrEnum):
    """How much better a member did than its group."""

    GRPO = "grpo"
    GRPO_NO_STD = "grpo_no_std"


class PpoClipConfig(Section):
    """The clipped policy-gradient loss."""

    kind: Literal["ppo_clip"] = "ppo_clip"
    clip_low: Annotated[float, Field(ge=0, le=1)] = 0.2
    clip_high: NotNegative = 0.2
    aggregate: FromYaml[Aggregate] = Aggregate.SEQUENCE


class LearnerConfig(Section):
    """AdamW, its schedule, and how a batch is cut. None switches `max_grad_norm` or `importance_cap` off."""

    lr: Positive = 1e-5
    betas: FromYaml[tuple[Decay, Decay]] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    schedule: FromYaml[Schedule] = Schedule.CONSTANT
    warmup_steps: CountOrZero = 0
    max_grad_norm: Positive | None = 1.0
    mini_batches: Count = 1
    micro_batch_tokens: Count = 4096
    advantage: FromYaml[AdvantageKind] = AdvantageKind.GRPO
    loss: PpoClipConfig = PpoClipConfig()
    importance_cap: Positive | None = 2.0
