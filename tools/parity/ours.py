"""Our functions on the recorded inputs, and what turns our definitions into a peer's where they part."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import stdev
from typing import Any, cast
from unittest.mock import patch

import torch

from loopwright.core.advantage import ADVANTAGES, Advantage, Scores, pass_at_k_advantage, per_group
from loopwright.core.weighting import token_weights
from loopwright.learn import kl, losses
from loopwright.learn.body import Body
from loopwright.learn.importance import Importance
from loopwright.learn.kl import KlTerm, divergence
from loopwright.learn.losses import MAX_LOG_RATIO, TokenBatch, TokenLoss
from loopwright.learn.meter import StepMeter
from loopwright.learn.objective import token_shares
from loopwright.learn.recipe import Recipe
from loopwright.types import Aggregate, ImportanceKind, KlKind, Level
from tools.parity.inputs import DATA

RECORDED: dict[str, Any] = {
    name: json.loads((DATA / f"{name}.json").read_text()) for name in ("verl", "trl", "torchrl")
}
INPUTS: dict[str, Any] = json.loads((DATA / "inputs.json").read_text())
SETTINGS: dict[str, Any] = INPUTS["settings"]
LOW, HIGH = SETTINGS["clip_low"], SETTINGS["clip_high"]

PPO_CLIP = partial(losses.ppo_clip, clip_low=LOW, clip_high=HIGH)
SYMMETRIC = partial(losses.ppo_clip, clip_low=LOW, clip_high=LOW)
DUAL_CLIP = partial(losses.ppo_clip, clip_low=LOW, clip_high=HIGH, dual_clip=SETTINGS["dual_clip"])
GSPO = partial(losses.gspo, clip_low=LOW, clip_high=HIGH)
CISPO = partial(losses.cispo, clip_low=LOW, clip_high=HIGH)
UPPER_CISPO = partial(losses.cispo, clip_low=1.0, clip_high=HIGH)
WHOLE_GROUP = 1_000
"""More than any group has, so `pass_at_k` takes all members."""


def groups(kind: str) -> list[Scores]:
    return [Scores(tuple(g["rewards"]), tuple(g["lengths"])) for g in INPUTS["groups"][kind]]


def advantages(name: str, kind: str, k: int = WHOLE_GROUP) -> Sequence[Sequence[float]]:
    function: Advantage = per_group(partial(pass_at_k_advantage, k=k)) if name == "pass_at_k" else ADVANTAGES[name]
    return function(groups(kind))


def rescaled(kind: str, divisor: Callable[[float], float]) -> list[list[float]]:
    """Our GRPO advantages, divided by `divisor` of the group's standard deviation instead of ours."""
    return [
        [a * (stdev(group.rewards) + 1e-6) / divisor(stdev(group.rewards)) if any(found) else a for a in found]
        for group, found in zip(groups(kind), advantages("grpo", kind), strict=True)
    ]


@dataclass(frozen=True)
class Way:
    """How our loss is put together, and what of a peer's definition is taken over: nothing, as a rule."""

    loss: TokenLoss
    aggregate: Aggregate = Aggregate.TOKEN
    importance: Importance = field(default_factory=lambda: Importance(ImportanceKind.OFF))
    kl: KlTerm | None = None
    largest_log_ratio: float = MAX_LOG_RATIO
    smallest_log_ratio: float = -torch.inf
    extra_length: float = 0.0


@dataclass(frozen=True)
class Tokens:
    """The sequences of one recorded batch, one after the other. `now` takes the gradient."""

    lengths: list[int]
    now: torch.Tensor
    reference: torch.Tensor
    batch: TokenBatch

    def ragged(self, values: torch.Tensor) -> list[list[float]]:
        return [part.tolist() for part in torch.split(values, self.lengths)]

    def derivative(self, value: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(value, self.now)[0]


def tokens(name: str, smallest_log_ratio: float = -torch.inf) -> Tokens:
    sequences = INPUTS["tokens"][name]
    lengths = [len(s["logprobs"]) for s in sequences]
    now, old, sampled, reference = (_flat(sequences, key) for key in ("logprobs", "old", "sampled", "reference"))
    now.requires_grad_()
    each = torch.tensor([s["advantage"] for s in sequences], dtype=torch.float64)
    of = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    near_enough = (now - old).detach() >= smallest_log_ratio
    followed = torch.where(near_enough, now, old + smallest_log_ratio)
    return Tokens(lengths, now, reference, TokenBatch(followed, old, sampled, each[of], of, reference))


def loss_and_gradient(way: Way, name: str) -> tuple[float, list[list[float]]]:
    """One number, and what each token's logprob does to it."""
    data = tokens(name, way.smallest_log_ratio)
    recipe = Recipe(
        advantage=ADVANTAGES["grpo"],
        loss=way.loss,
        temperature=1.0,
        steps=1,
        constant_length=SETTINGS["constant_length"],
        importance=way.importance,
        kl=way.kl,
    )
    each = token_weights(data.lengths, way.aggregate, SETTINGS["constant_length"])
    longer = [weight * n / (n + way.extra_length) for weight, n in zip(each, data.lengths, strict=True)]
    weights = torch.tensor(longer, dtype=torch.float64)[data.batch.sequence]
    with bounded(way.largest_log_ratio):
        value = token_shares(recipe, data.batch, weights, torch.zeros_like(weights), StepMeter()).sum()
        return value.item(), data.ragged(data.derivative(value))


def kl_and_gradient(kind: KlKind, name: str, bound: float | None = None) -> tuple[list[list[float]], list[list[float]]]:
    """Each token's divergence, none above `bound`, and what its logprob does to it."""
    data = tokens(name)
    values = divergence(kind, data.now, data.reference)
    if bound is not None:
        values = values.clamp(max=bound)
    return data.ragged(values.detach()), data.ragged(data.derivative(values.sum()))


def ppo_clip_with_weighted_kl(batch: TokenBatch) -> torch.Tensor:
    """The divergence times the ratio, whose gradient counts too: TRL's bias correction."""
    reference = cast(torch.Tensor, batch.reference_logprobs)
    drift = batch.ratio(Level.TOKEN) * divergence(KlKind.K3, batch.logprobs, reference)
    return PPO_CLIP(batch).add(drift, alpha=SETTINGS["kl_coefficient"])


def kl_term(kind: KlKind) -> KlTerm:
    """Without a model: the batches carry the reference's logprobs."""
    return KlTerm(kind, SETTINGS["kl_coefficient"], reference=cast(Body, None))


def importance(kind: ImportanceKind, level: Level) -> Importance:
    """Truncation has no floor in the recorded runs, masking has one."""
    return Importance(kind, level, SETTINGS["cap"], SETTINGS["floor"] if kind is ImportanceKind.MASK else 0.0)


@contextmanager
def bounded(log_ratio: float) -> Iterator[None]:
    with patch.object(losses, "MAX_LOG_RATIO", log_ratio), patch.object(kl, "MAX_LOG_RATIO", log_ratio):
        yield


def _flat(sequences: list[dict[str, Any]], key: str) -> torch.Tensor:
    return torch.tensor([value for s in sequences for value in s[key]], dtype=torch.float64)
