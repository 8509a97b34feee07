"""What whole and streamed chat completions have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from loopwright.gateway.call import Answer, Call, TokenLogprob
from loopwright.gateway.freeform import input_of
from loopwright.types import FinishReason, ToolCall


def finish_reason(answer: Answer) -> str:
    if answer.calls_tools:
        return "tool_calls"
    return "length" if answer.finish is FinishReason.LENGTH else "stop"


def chat_usage(answers: Sequence[Answer]) -> Mapping[str, Any]:
    prompt = answers[0].prompt_tokens
    completion = sum(answer.completion_tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": answers[0].cached_tokens},
    }


def asked_tool(call: ToolCall, freeform: Collection[str]) -> Mapping[str, Any]:
    if call.name in freeform:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": input_of(call.arguments)}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def prompt_token_ids(call: Call, ids: Sequence[int]) -> dict[str, Any]:
    """What the engine received, as vLLM's API tells it, if the call asked for it."""
    return {"prompt_token_ids": ids} if call.token_ids else {}


def token_ids(call: Call, ids: Sequence[int]) -> dict[str, Any]:
    """What the engine sampled, as vLLM's API tells it, if the call asked for it."""
    return {"token_ids": ids} if call.token_ids else {}


def logprobs_body(tokens: Sequence[TokenLogprob]) -> Mapping[str, Any]:
    """The logprobs of the sampled tokens, with the likeliest tokens if the call asked for them."""
    return {"content": logprob_entries(tokens), "refusal": None}


def logprob_entries(tokens: Sequence[TokenLogprob]) -> list[Mapping[str, Any]]:
    return [
        {**_entry(token.text, token.logprob), "top_logprobs": [_entry(*one) for one in token.likeliest]}
        for token in tokens
    ]


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
