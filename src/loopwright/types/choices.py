"""Closed sets of choices that the config offers and the core acts on."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

OnAgentError = Literal["fail", "grade"] | float
"""What an agent that raised is worth: nothing (its rollout failed), what the judger says of what it did so far, or a
fixed reward."""

TailBatch = Literal["off", "immediate"] | int
"""When expired groups are made again: never (they are masked), among the others as soon as there are any, or, from
that many on, in a step of their own."""


class Schedule(StrEnum):
    """How the learning rate moves after its warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    """Down to zero at the end of the run."""
    COSINE = "cosine"
    """Down to zero along half a cosine."""


class Aggregate(StrEnum):
    """How token losses become one number. A rollout with ten chains is still one rollout (T6): with `sequence` it
    weighs as much as any other, with the others by its tokens."""

    SEQUENCE = "sequence"
    """The mean over each rollout's tokens, then over rollouts: every rollout counts the same."""
    TOKEN = "token"
    """The mean over all tokens of the mini-batch: every token counts the same."""
    CONSTANT = "constant"
    """The sum over each rollout's tokens over one fixed length, then the mean over rollouts (Dr. GRPO): a token counts
    the same in a short and in a long rollout, and in every batch."""


class Level(StrEnum):
    """What a ratio of probabilities is taken of."""

    TOKEN = "token"
    SEQUENCE = "sequence"
    """A whole chain: all its tokens get the same number."""


class ImportanceKind(StrEnum):
    """What happens to an importance weight that leaves its bounds."""

    TRUNCATE = "truncate"
    """It becomes the bound."""
    MASK = "mask"
    """It becomes 0: the token is not trained on."""
    OFF = "off"
    """There are no weights: every token counts as if the trained policy had sampled it."""


class KlKind(StrEnum):
    """Estimators of the divergence from a reference, from one sampled token (Schulman's names)."""

    K1 = "k1"
    """log p/q. Unbiased as a number; as a loss, its gradient is zero on average."""
    K2 = "k2"
    """(log p/q)^2 / 2. As a loss, it has the gradient of the divergence."""
    K3 = "k3"
    """q/p - 1 - log q/p. Unbiased and never negative; the choice of the GRPO paper."""


class EvalMode(StrEnum):
    """How the answers of an evaluation are sampled."""

    GREEDY = "greedy"
    SAMPLED = "sampled"
    """At the training temperature."""


class MetricKind(StrEnum):
    """What an evaluation can measure by itself."""

    MEAN = "mean"
    ACCURACY = "accuracy"
    """The share of samples that are right."""
    PASS = "pass"
    """`pass@k`: how likely one of k samples is right."""
    MAJORITY = "majority"
    """`majority@k`: the score of the answer that most of k samples agree on."""


class TrainerKind(StrEnum):
    """Where sampling and training happen."""

    COLOCATE = "colocate"
    """In one process, on the same parameters: sample, then train."""
    DISAGGREGATED = "disaggregated"
    """In two processes, at the same time."""


class ProduceKind(StrEnum):
    """When the groups of a train step are made."""

    SYNC = "sync"
    """All of them by the newest weights, before the step."""
    ASYNC = "async"
    """Ahead of their step, within the staleness that is allowed."""


class SyncKind(StrEnum):
    """When the engines of a disaggregated run get new weights."""

    INTERVAL = "interval"
    """After every so many train steps, and when only newer weights let production go on."""
    ON_DEMAND = "on_demand"
    """Also after a step that finds slots empty because production is as far ahead as it may be."""


class PauseMode(StrEnum):
    """What happens to requests that are running when an engine is paused."""

    DRAIN = "drain"
    """They run to their end; new ones wait."""
    ABORT = "abort"
    """They return at once with what they have sampled and `finish = abort`."""
    KEEP = "keep"
    """They freeze at a token boundary and go on after `resume`, under whatever weights are loaded then."""


class Stale(StrEnum):
    """What becomes of a group that has tokens too old for the step that could train it. It is never dropped (R5)."""

    MASK = "mask"
    """Those tokens are not trained on; the others are."""
    WAIT = "wait"
    """It does not come to that: the step that could still use the group waits for it."""
    RETRY = "retry"
    """It is made again, within a limit; beyond that it is masked."""


class BufferKind(StrEnum):
    """Where groups are kept between production and training."""

    SQLITE = "sqlite"
    MEMORY = "memory"
    """Gone with the process: a run that is killed goes on from its checkpoint, without what came after it."""


class Thinking(StrEnum):
    """What becomes of the thoughts of earlier turns when a conversation goes on."""

    KEEP = "keep"
    """They stay in the model's context as they were sampled, so that one conversation is one chain."""
    TEMPLATE = "template"
    """What the model's chat template does. Most drop them at the next question, and then a new chain begins."""


class ToolScope(StrEnum):
    """How long a server of tools lives."""

    ROLLOUT = "rollout"
    """Every rollout has its own, so that none sees what another did."""
    RUN = "run"
    """All rollouts share one. For tools that keep nothing between calls."""
