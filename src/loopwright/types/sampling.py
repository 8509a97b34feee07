"""How to sample, and what an engine gives back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from loopwright.errors import ConfigError, EngineError
from loopwright.types.constraint import Constraint
from loopwright.types.spans import Spans, fits, shifted_spans


class FinishReason(StrEnum):
    """Why an engine stopped sampling."""

    STOP = "stop"
    """A stop token or stop string was sampled."""
    LENGTH = "length"
    """`max_new_tokens` or the model's context was reached."""
    ABORT = "abort"
    """The request was aborted; what was sampled so far is returned."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings of one request.

    `temperature` 0 is greedy; its logprobs are those of temperature 1. `top_k` 0 and `top_p` 1 are off; they
    truncate what may be sampled, never the reported logprobs (T8). The random number behind a token depends only
    on `seed` and the token's position, so neither the batch nor an interruption changes what is sampled.
    """

    temperature: float = 1.0
    max_new_tokens: int = 256
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        sound = self.temperature >= 0 and self.max_new_tokens >= 0 and self.top_k >= 0 and 0 < self.top_p <= 1
        if not sound or "" in self.stop:
            raise ConfigError(
                f"{self} cannot be sampled with",
                remedy="temperature, max_new_tokens and top_k are not negative, top_p is above 0 and at most 1, and no "
                "stop string is empty",
            )


PART_TOKENS = 64
"""How many tokens an engine reports at a time to a caller that only wants to keep them: each report costs time. When an
engine dies, at most this many tokens of an answer are lost."""


MOST_ALTERNATIVES = 20
"""How many of the likeliest tokens an engine tells for each sampled one at most, as in OpenAI's API."""

Likeliest = tuple[tuple[int, float], ...]
"""The likeliest tokens at one place with their logprobs, the likeliest first."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Token ids in. `id` names the request for `abort`; in lockstep, requests are ordered by it.

    `resumable`: the caller can continue from a partial answer by itself. For other callers the controller continues the
    answer after a pause, and they see one slower call. `sampled_before`: how many of the prompt's last ids are the
    beginning of this answer, sampled by an earlier call; a stop string may begin in them. `part_tokens`: how many
    tokens are reported at a time while the answer is sampled. `seconds`: the caller's remaining time; None means no
    limit. The side that holds the engines counts it, but not while the call is held, and ends the call with
    OutOfTimeError. `affinity`: requests with the same text begin with the same tokens, as those of a group do, so one
    engine should answer them all. Empty means that nothing is known. `constraint`: the grammar that the answer keeps,
    beginning with the tokens that were sampled before. `alternatives`: how many of the likeliest tokens to tell for
    each sampled one. What is sampled does not depend on it.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    resumable: bool = False
    sampled_before: int = 0
    part_tokens: int = PART_TOKENS
    seconds: float | None = None
    affinity: str = ""
    constraint: Constraint | None = None
    alternatives: int = 0

    def within(self, seconds: float) -> GenerateRequest:
        """The request with so many seconds left for it; infinitely many are no limit."""
        limit = None if seconds == math.inf else max(0.0, seconds)
        return GenerateRequest(
            self.id,
            self.prompt_ids,
            self.sampling,
            self.resumable,
            self.sampled_before,
            self.part_tokens,
            limit,
            self.affinity,
            self.constraint,
            self.alternatives,
        )

    def after(self, part: Generation) -> GenerateRequest:
        """The request for what is still to be sampled after `part`."""
        if not part.ids:
            return self
        left = replace(self.sampling, max_new_tokens=self.sampling.max_new_tokens - len(part.ids))
        return replace(
            self,
            prompt_ids=(*self.prompt_ids, *part.ids),
            sampling=left,
            sampled_before=self.sampled_before + len(part.ids),
        )


@dataclass(frozen=True, slots=True)
class Generation:
    """Token ids out, with the logprob and the weight version of each, and why sampling ended.

    `held` tells how long the call was held, as while weights are exchanged: two readings of the clock that counts held
    seconds, when the call began and when it ended. It is None where nobody counts, and no part of the value.
    `constrained` are the spans of tokens that do not train: the request's constraint left no choice, or their logprobs
    are those of what it left. `alternatives` are the likeliest tokens in the place of each token, of the distribution
    that its logprob is of (T8). They are empty if the request did not ask for them.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: FinishReason
    held: tuple[float, float] | None = field(default=None, compare=False)
    constrained: Spans = ()
    alternatives: tuple[Likeliest, ...] = ()

    def __post_init__(self) -> None:
        tokens = len(self.ids)
        if len(self.logprobs) != tokens or len(self.versions) != tokens:
            raise EngineError(
                f"an engine gave {tokens} tokens, {len(self.logprobs)} logprobs and {len(self.versions)} versions",
                remedy="see its log: each token needs its own logprob and version (T3)",
            )
        if self.constrained and not fits(self.constrained, tokens):
            raise EngineError(
                f"an engine gave {tokens} tokens and says that those at {self.constrained} were constrained",
                remedy="see its log: spans come in order, and lie within the answer",
            )
        if self.alternatives and len(self.alternatives) != tokens:
            raise EngineError(
                f"an engine gave {tokens} tokens, and the alternatives of {len(self.alternatives)}",
                remedy="see its log: it tells those of every token or of none",
            )

    def since(self, count: int) -> Generation:
        """The part after the first `count` tokens."""
        constrained = shifted_spans(self.constrained, -count) if self.constrained else ()
        return Generation(
            self.ids[count:],
            self.logprobs[count:],
            self.versions[count:],
            self.finish,
            self.held,
            constrained,
            self.alternatives[count:],
        )


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What an engine computes for a prompt: the logprob at temperature 1 of each prompt token but the first, and tokens
    that it sampled after the prompt as it does for every request."""

    prompt_logprobs: tuple[float, ...]
    sampled: Generation


NOTHING_YET = Generation((), (), (), FinishReason.ABORT)
"""The generation of a request that was cut short before its first token."""
