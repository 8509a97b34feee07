"""The whole schema of a run, one section per room. A field is here only if it has an effect."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from loopwright.config.base import (
    Count,
    CountOrZero,
    Decay,
    FromYaml,
    NotNegative,
    Positive,
    Section,
    Share,
    Text,
)
from loopwright.config.problems import KeyPath
from loopwright.config.task_sets import JudgerConfig, TaskSetConfig
from loopwright.types import Aggregate, Schedule


class Dtype(StrEnum):
    """The numbers that weights are stored in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class ModelConfig(Section):
    """`path` is `smollm2`, a folder, or a Hugging Face name."""

    path: Text
    dtype: FromYaml[Dtype] = Dtype.FLOAT32
    threads: Count | None = None
    max_context: Count | None = None


class TorchEngineConfig(Section):
    """The embedded engine."""

    kind: Literal["torch"] = "torch"
    max_batch: Count = 64


class RolloutConfig(Section):
    """How answers are sampled. `concurrency` counts rollouts in flight."""

    engine: TorchEngineConfig = TorchEngineConfig()
    samples_per_task: Count = 8
    temperature: Positive = 1.0
    max_new_tokens: Count = 256
    top_k: CountOrZero = 0
    top_p: Share = 1.0
    stop: FromYaml[tuple[str, ...]] = ()
    concurrency: Count = 256


class ProduceConfig(Section):
    """How groups are made, and how much failure is borne (R2, R4)."""

    kind: Literal["sync"] = "sync"
    max_attempts: Count = 3
    judge_attempts: Count = 2
    min_members: Count | None = None
    failure_budget: Count = 16
    agent_timeout_seconds: Positive = 600.0


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


class TrainerConfig(Section):
    """The run itself. `run_dir` is relative to the current directory, not to the config file."""

    kind: Literal["colocate"] = "colocate"
    run_dir: Text
    steps: Count
    groups_per_step: Count = 8
    seed: CountOrZero = 0
    deterministic: bool = False
    checkpoint_every: Count = 10
    keep_checkpoints: Count = 2
    export: bool = True


class EvalConfig(Section):
    """Before and after training, and every `every` steps when that is above 0."""

    every: CountOrZero = 0
    greedy: bool = True
    sampled: bool = True
    task_sets: FromYaml[tuple[TaskSetConfig, ...]] = ()


class TrackConfig(Section):
    """What a run shows besides its metrics file."""

    console: bool = True
    report: bool = True


class RunConfig(Section):
    """One run. The short form `data` + `agent` has become `task_sets` before this is built."""

    model: ModelConfig
    task_sets: FromYaml[tuple[TaskSetConfig, ...]]
    judgers: dict[str, JudgerConfig] = Field(default_factory=dict)
    rollout: RolloutConfig = RolloutConfig()
    produce: ProduceConfig = ProduceConfig()
    learner: LearnerConfig = LearnerConfig()
    trainer: TrainerConfig
    eval: EvalConfig | None = None
    track: TrackConfig = TrackConfig()

    def all_task_sets(self) -> Iterator[tuple[KeyPath, TaskSetConfig]]:
        """The task sets of training and of evaluation, with their places in the config."""
        for index, task_set in enumerate(self.task_sets):
            yield ("task_sets", index), task_set
        for index, task_set in enumerate(self.eval.task_sets if self.eval else ()):
            yield ("eval", "task_sets", index), task_set
