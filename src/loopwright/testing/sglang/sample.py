"""Chooses a token from logits, and tells its logprob as SGLang does: after temperature, before top-k, top-p, min-p."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from loopwright.testing.sglang.asks import GenerateAsk, SamplingParams

LOWEST = -3.4e38
Triple = list[Any]
"""[logprob, token id, null]: the text is not filled in."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The logprobs that a request asks for at one position."""

    token: Triple
    top: list[Triple]
    chosen: list[Triple]


def pick(logits: torch.Tensor, sampling: SamplingParams, random: torch.Generator) -> int:
    """The seed of a request is not used: SGLang uses it only with --enable-deterministic-inference."""
    weights = (logits.double() / sampling.temperature).softmax(-1)
    ordered, order = weights.sort(descending=True, stable=True)
    if sampling.top_k != -1:
        ordered[sampling.top_k :] = 0
    ordered[ordered.cumsum(0) - ordered >= sampling.top_p] = 0
    ordered[ordered < sampling.min_p * ordered[0]] = 0
    return int(order[torch.multinomial(ordered, 1, generator=random)])


def row(logits: torch.Tensor, temperature: float, token: int, ask: GenerateAsk) -> TokenLogprobs:
    logprobs = (logits / temperature).log_softmax(-1)
    top = logprobs.topk(ask.top_logprobs_num) if ask.top_logprobs_num > 0 else None
    return TokenLogprobs(
        [_value(logprobs[token]), token, None],
        [[_value(v), int(i), None] for v, i in zip(*top, strict=True)] if top else [],
        [[_value(logprobs[one]), one, None] for one in ask.token_ids_logprob or ()],
    )


def _value(logprob: torch.Tensor) -> float:
    return max(float(logprob), LOWEST)
