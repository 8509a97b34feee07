"""Closed sets of choices: the config offers them, and other rooms act on them."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

OnAgentError = Literal["fail", "grade"] | float
"""What an agent that raised is worth: nothing (its rollout failed), what the judger says of what it did so far, or a
fixed reward."""

TailBatch = Literal["off", "immediate"] | int
"""When expired groups are made again: `off` is never (their old tokens are masked), `immediate` is at once, among the
other groups, and a number N is in a step of their own, as soon as N of them wait."""


class Schedule(StrEnum):
    """How the learning rate moves after its warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    """Down to zero at the end of the run."""
    COSINE = "cosine"
    """Down to zero along half a cosine."""


class Aggregate(StrEnum):
    """How token losses become one number. A rollout with ten chains is still one rollout (T6). With `sequence` all
    rollouts weigh the same; with the other two a rollout weighs as much as its tokens."""

    SEQUENCE = "sequence"
    """The mean over each rollout's tokens, then over rollouts: every rollout counts the same."""
    TOKEN = "token"
    """The mean over all tokens of the mini-batch: every token counts the same."""
    CONSTANT = "constant"
    """The sum over each rollout's tokens, divided by one fixed length, then the mean over rollouts (Dr. GRPO). A token
    counts the same in a short and in a long rollout, and in every batch."""


class Level(StrEnum):
    """What a ratio of probabilities is computed for: each token, or a whole chain."""

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
    """Estimators of the divergence from a reference model, each computed from one sampled token (Schulman's names)."""

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
    """The built-in metrics of an evaluation."""

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
    """After every `sync_interval` train steps, and whenever production cannot go on without newer weights."""
    ON_DEMAND = "on_demand"
    """Also after a step that finds empty slots because production is as far ahead as it may be."""


class PauseMode(StrEnum):
    """What happens to requests that are running when an engine is paused."""

    DRAIN = "drain"
    """They run to their end; new ones wait."""
    ABORT = "abort"
    """They return at once with what they have sampled and `finish = abort`."""
    KEEP = "keep"
    """They freeze at a token boundary and go on after `resume`, under whatever weights are loaded then."""


class Stale(StrEnum):
    """What happens to a group with tokens that are too old for the step that could train it. It is never dropped
    (R5)."""

    MASK = "mask"
    """Those tokens are not trained on; the others are."""
    WAIT = "wait"
    """No group gets too old: the last step that can still use the group waits for it."""
    RETRY = "retry"
    """It is made again, at most `max_expiries` times; after that it is masked."""


class BufferKind(StrEnum):
    """Where groups are kept between production and training."""

    SQLITE = "sqlite"
    MEMORY = "memory"
    """In memory only. A run that was killed goes on from its checkpoint and has lost all later groups."""


class Thinking(StrEnum):
    """What happens to the thoughts of earlier turns when a conversation continues."""

    KEEP = "keep"
    """They stay in the model's context exactly as they were sampled, so one conversation is one chain."""
    TEMPLATE = "template"
    """The model's chat template decides. Most templates drop them at the next question; then a new chain begins."""


class ProgramInput(StrEnum):
    """What a program finds at its standard input."""

    NONE = "none"
    """Nothing: it is closed."""
    INSTRUCTION = "instruction"
    """The task as one text."""


class Isolation(StrEnum):
    """How far a program is kept apart from the machine that it runs on."""

    NONE = "none"
    """It acts as the user who started the run."""
    BWRAP = "bwrap"
    """In a sandbox of bubblewrap: it may write to its own folders only, and sees its own processes only."""


class ApiFormat(StrEnum):
    """How an agent of Harbor talks to the model, in Harbor's words."""

    CHAT = "openai_chat_completions"
    RESPONSES = "openai_responses"
    ANTHROPIC = "anthropic_messages"


class ToolScope(StrEnum):
    """How long a tool server lives."""

    ROLLOUT = "rollout"
    """Every rollout has its own, so that none sees what another did."""
    RUN = "run"
    """All rollouts share one. For tools that keep nothing between calls."""


class ServerKind(StrEnum):
    """In which words an engine behind a URL is asked."""

    LOOPWRIGHT = "loopwright"
    """`loopwright engine`, or a run's door."""
    VLLM = "vllm"
    """A vLLM server with its generate route (`--enable-scale-out`)."""
    SGLANG = "sglang"
    """An SGLang server."""
