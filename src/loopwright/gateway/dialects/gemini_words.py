"""What whole and streamed responses of Gemini's API have in common, and its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.errors import RefusedError
from loopwright.gateway.call import Answer, Call, TokenLogprob
from loopwright.gateway.dialects.dialect import error_text
from loopwright.gateway.refusals import Code, code_of
from loopwright.types import FinishReason

STATUSES = {
    Code.KEY: "UNAUTHENTICATED",
    Code.FORBIDDEN: "PERMISSION_DENIED",
    Code.UNKNOWN: "NOT_FOUND",
    Code.GONE: "NOT_FOUND",
    Code.CONFLICT: "ABORTED",
    Code.ENGINE: "UNAVAILABLE",
    Code.INTERNAL: "INTERNAL",
}


def shows_thoughts(config: Mapping[str, Any]) -> bool:
    """Whether the client asked for the model's thoughts. They are always recorded completely."""
    thinking = config.get("thinkingConfig")
    return isinstance(thinking, dict) and thinking.get("includeThoughts") is True


def candidate(index: int, parts: Sequence[Mapping[str, Any]], answer: Answer | None = None) -> dict[str, Any]:
    """One sample. Without an `answer` it is still in progress."""
    said: dict[str, Any] = {"index": index, "content": {"role": "model", "parts": list(parts)}}
    if answer is not None:
        said["finishReason"] = "MAX_TOKENS" if answer.finish is FinishReason.LENGTH else "STOP"
        if answer.logprobs:
            said |= _logprobs(answer.logprobs)
    return said


def _logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The logprobs of the sampled tokens, with the likeliest tokens if the call asked for them."""
    result: dict[str, Any] = {"chosenCandidates": [_entry(token.text, token.logprob) for token in tokens]}
    if any(token.likeliest for token in tokens):
        result["topCandidates"] = [{"candidates": [_entry(*one) for one in token.likeliest]} for token in tokens]
    mean = sum(token.logprob for token in tokens) / len(tokens)
    return {"avgLogprobs": mean, "logprobsResult": result}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logProbability": logprob}


def gemini_response(
    call: Call, id: str, candidates: Sequence[Mapping[str, Any]], usage: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    body = {"candidates": list(candidates), "modelVersion": call.model, "responseId": id}
    return body if usage is None else {**body, "usageMetadata": usage}


def gemini_usage(answers: Sequence[Answer]) -> dict[str, Any]:
    prompt, sampled = answers[0].prompt_tokens, sum(answer.completion_tokens for answer in answers)
    return {
        "promptTokenCount": prompt,
        "cachedContentTokenCount": answers[0].cached_tokens,
        "candidatesTokenCount": sampled,
        "totalTokenCount": prompt + sampled,
    }


def gemini_error(error: RefusedError) -> Mapping[str, Any]:
    status = STATUSES.get(code_of(error), "INVALID_ARGUMENT")
    return {"error": {"code": error.facts.get("status", 400), "message": error_text(error), "status": status}}
