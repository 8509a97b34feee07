"""The schema of the learner: what is optimised, and how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from loopwright.config.base import (
    Count,
    CountOrZero,
    Decay,
    FromYaml,
    NotNegative,
    OffIsAWord,
    Positive,
    RefusedSettingError,
    Section,
    Text,
)
from loopwright.config.needs import Need, Outside
from loopwright.types import Aggregate, ImportanceKind, KlKind, Level, Schedule

Drop = Annotated[float, Field(ge=0, le=1)]
"""How far below 1 a ratio may fall."""


class PlainAdvantage(Section):
    """An advantage with nothing to set."""

    kind: Literal["grpo", "grpo_no_std", "rloo", "opo", "reinforce_pp", "reinforce_pp_baseline"] = "grpo"


class PassAtK(Section):
    """What a member adds to the best of k - 1 siblings."""

    kind: Literal["pass_at_k"] = "pass_at_k"
    k: Annotated[int, Field(ge=2)]


class PythonAdvantage(Section):
    """The user's function from the scores of all groups to the advantages of their members."""

    kind: Literal["python"] = "python"
    path: Text
    args: dict[str, Any] = Field(default_factory=dict)

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.CODE, ("path",), self.path)


AdvantageConfig = Annotated[PlainAdvantage | PassAtK | PythonAdvantage, Field(discriminator="kind")]


class _Loss(Section):
    """What every loss has: how its tokens are aggregated. `constant_length` None means `rollout.max_new_tokens`."""

    kind: str
    aggregate: FromYaml[Aggregate] = Aggregate.SEQUENCE
    constant_length: Count | None = None


class PpoClipConfig(_Loss):
    """The clipped policy-gradient loss."""

    kind: Literal["ppo_clip"] = "ppo_clip"
    clip_low: Drop = 0.2
    clip_high: NotNegative = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None


class GspoConfig(_Loss):
    """The clipped loss of whole sequences. Their ratios change far less than those of tokens, so the bounds are
    tight."""

    kind: Literal["gspo"] = "gspo"
    clip_low: Drop = 3e-4
    clip_high: NotNegative = 4e-4


class CispoConfig(_Loss):
    """The policy gradient weighted by a clipped ratio. Bounded from above only, unless `clip_low` is below 1."""

    kind: Literal["cispo"] = "cispo"
    clip_low: Drop = 1.0
    clip_high: NotNegative = 4.0


class ReinforceConfig(_Loss):
    """The plain policy gradient."""

    kind: Literal["reinforce"] = "reinforce"


class PythonLoss(_Loss):
    """The user's function from the tokens of a micro-batch to one loss per token."""

    kind: Literal["python"] = "python"
    path: Text
    args: dict[str, Any] = Field(default_factory=dict)

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.CODE, ("path",), self.path)


LossConfig = Annotated[
    PpoClipConfig | GspoConfig | CispoConfig | ReinforceConfig | PythonLoss, Field(discriminator="kind")
]


class ImportanceConfig(Section):
    """The correction for tokens that were sampled by other weights, or other kernels, than those that are trained."""

    kind: Annotated[FromYaml[ImportanceKind], OffIsAWord] = ImportanceKind.TRUNCATE
    level: FromYaml[Level] = Level.TOKEN
    cap: Positive = 2.0
    floor: NotNegative = 0.0


class KlConfig(Section):
    """The divergence from a reference model, as a part of the loss. `reference` None means the initial weights."""

    kind: FromYaml[KlKind] = KlKind.K3
    coefficient: Positive
    reference: Text | None = None

    def needs(self) -> Iterator[Need]:
        if self.reference is not None:
            yield Need(Outside.MODEL, ("reference",), self.reference)


class SftConfig(Section):
    """Conversations to imitate, as a part of the loss."""

    path: Text
    coefficient: Positive
    examples_per_step: Count = 8

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.FILE, ("path",), self.path)


REFUSED_OF_LORA = {
    "dropout": "dropout would make the learner's logprobs differ from those that were sampled",
    "dora": "DoRA scales whole weights, so an adapter is more than W + s·B·A",
    "bias": "only the matrices of linear layers are adapted",
    "modules_to_save": "a module that is trained whole is no adapter; leave out learner.lora to train all weights",
}
"""What peft can do and learner.lora cannot, each with the reason. The names are also those that begin with lora_ or
use_."""


ALL_LINEAR = "all-linear"
OneOrMore = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
"""A text alone stands for a list of it."""


class LoraConfig(Section):
    """Adapters that are trained instead of the weights. `targets` are the ends of the names of the linear layers that
    get one; `all-linear`: all but the head. The scale is alpha / rank, or alpha / sqrt(rank) with `rslora`."""

    rank: Count = 16
    alpha: Count = 32
    targets: Annotated[FromYaml[tuple[Text, ...]], Field(min_length=1), OneOrMore] = (ALL_LINEAR,)
    rslora: bool = False

    @property
    def named_targets(self) -> tuple[str, ...] | None:
        """None means all linear layers but the head."""
        return None if self.targets == (ALL_LINEAR,) else self.targets

    @model_validator(mode="before")
    @classmethod
    def _refuse_more_than_lora(cls, given: Any) -> Any:
        for name in given if isinstance(given, dict) else ():
            short = str(name).removeprefix("lora_").removeprefix("use_")
            if short == "targets" and given[name] == []:
                raise RefusedSettingError(
                    "targets names no layer, so nothing would be trained",
                    "name linear layers, such as [q_proj, v_proj]; or leave targets out, for all of them",
                )
            if short in REFUSED_OF_LORA:
                raise RefusedSettingError(f"there is no {name} here: {REFUSED_OF_LORA[short]}", f"remove {name}")
        return given

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.EXTRA, (), "lora")


class LearnerConfig(Section):
    """AdamW, its schedule, how a batch is split, and the terms of the loss. `max_grad_norm` None does not clip."""

    lr: Positive = 1e-5
    betas: FromYaml[tuple[Decay, Decay]] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    schedule: FromYaml[Schedule] = Schedule.CONSTANT
    warmup_steps: CountOrZero = 0
    max_grad_norm: Positive | None = 1.0
    mini_batches: Count = 1
    micro_batch_tokens: Count = 4096
    checkpoint_activations: bool = False
    ranks: Count = 1
    placement: Literal["local", "ray"] = "local"
    num_cpus_per_rank: NotNegative = 1.0
    num_gpus_per_rank: NotNegative = 0.0
    lora: LoraConfig | None = None
    max_restarts: CountOrZero = 3
    advantage: AdvantageConfig = PlainAdvantage()
    loss: LossConfig = PpoClipConfig()
    importance: ImportanceConfig = ImportanceConfig()
    kl: KlConfig | None = None
    sft: SftConfig | None = None

    @property
    def is_on_actors(self) -> bool:
        """Whether its ranks are actors of a cluster."""
        return self.ranks > 1 and self.placement == "ray"
