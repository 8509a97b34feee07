"""Refusals as both APIs of OpenAI write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopwright.errors import RefusedError
from loopwright.gateway.dialects.dialect import error_text
from loopwright.gateway.refusals import Code, code_of

TYPES = {
    Code.KEY: "authentication_error",
    Code.FORBIDDEN: "permission_error",
    Code.ENGINE: "server_error",
    Code.INTERNAL: "server_error",
}


def openai_error(error: RefusedError) -> Mapping[str, Any]:
    code = code_of(error)
    return {
        "error": {
            "message": error_text(error),
            "type": TYPES.get(code, "invalid_request_error"),
            "param": error.facts.get("param"),
            "code": code.value,
        }
    }
