"""What whole and streamed messages of Anthropic's API have in common."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from loopwright.errors import RefusedError
from loopwright.gateway.call import Answer, Call
from loopwright.gateway.dialects.dialect import error_text
from loopwright.gateway.refusals import Code, code_of
from loopwright.types import FinishReason

TYPES = {
    Code.KEY: "authentication_error",
    Code.FORBIDDEN: "permission_error",
    Code.UNKNOWN: "not_found_error",
    Code.GONE: "not_found_error",
    Code.TOO_LARGE: "request_too_large",
    Code.ENGINE: "overloaded_error",
    Code.INTERNAL: "api_error",
}


class ShownThinking(StrEnum):
    """What a client gets of the model's thoughts. They are always recorded completely."""

    NONE = "none"
    """Nothing, because it did not ask: it may treat an unknown block as an error, or the thoughts as the answer."""
    SIGNATURE = "signature"
    """Only that there were thoughts."""
    WHOLE = "whole"


def asked_thinking(wish: Any) -> ShownThinking:
    if not isinstance(wish, dict) or wish.get("type") not in ("enabled", "adaptive"):
        return ShownThinking.NONE
    return ShownThinking.SIGNATURE if wish.get("display") == "omitted" else ShownThinking.WHOLE


def shown(call: Call) -> ShownThinking:
    return ShownThinking(call.echo.get("thinking", ShownThinking.NONE))


def stop_reason(answer: Answer) -> str:
    if answer.calls_tools:
        return "tool_use"
    if answer.finish is FinishReason.LENGTH:
        return "max_tokens"
    return "stop_sequence" if answer.stop is not None else "end_turn"


def input_usage(prompt_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The usage of the input. Anthropic counts cached tokens separately from the rest."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
    }


def anthropic_usage(answer: Answer) -> Mapping[str, Any]:
    return input_usage(answer.prompt_tokens, answer.cached_tokens) | {"output_tokens": answer.completion_tokens}


def signature(answer: str) -> str:
    """The signature of thoughts. Clients send thoughts back only with a signature; ours names their answer."""
    return f"loopwright-{answer}"


def anthropic_error(error: RefusedError) -> Mapping[str, Any]:
    code = code_of(error)
    said: dict[str, Any] = {"type": TYPES.get(code, "invalid_request_error"), "message": error_text(error)}
    if code is Code.THREADS:
        said["details"] = {"error_code": code.value}
    if code is Code.CONTEXT:
        # Clients search for these words to find out that they must compact their history.
        said["message"] = f"prompt is too long: {said['message']}"
    return {"type": "error", "error": said}
