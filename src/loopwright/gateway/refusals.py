"""The reasons for refusing a request, each with a status. SDKs retry only 408, 409, 429 and 5xx."""

from __future__ import annotations

from enum import StrEnum

from loopwright.errors import EngineError, LoopwrightError, RefusedError


class Code(StrEnum):
    """The kinds of refusal. Every dialect has its own names for them."""

    INVALID = "invalid_request"
    CONTEXT = "context_length_exceeded"
    THREADS = "thread_unsupported_request"
    PREVIOUS = "previous_response_not_found"
    KEY = "invalid_api_key"
    FORBIDDEN = "permission_denied"
    UNKNOWN = "not_found"
    METHOD = "method_not_allowed"
    CONFLICT = "conflict"
    GONE = "session_over"
    TOO_LARGE = "request_too_large"
    ENCODING = "unsupported_media_type"
    ENGINE = "engine_unavailable"
    INTERNAL = "internal_error"


STATUS = {
    Code.INVALID: 400,
    Code.CONTEXT: 400,
    Code.THREADS: 400,
    Code.PREVIOUS: 400,
    Code.KEY: 401,
    Code.FORBIDDEN: 403,
    Code.UNKNOWN: 404,
    Code.METHOD: 405,
    Code.CONFLICT: 409,
    Code.GONE: 410,
    Code.TOO_LARGE: 413,
    Code.ENCODING: 415,
    Code.ENGINE: 503,
    Code.INTERNAL: 500,
}


def refused(code: Code, message: str, *, remedy: str, param: str | None = None) -> RefusedError:
    return RefusedError(message, remedy=remedy, status=STATUS[code], code=code, param=param)


def invalid(param: str, message: str, *, remedy: str) -> RefusedError:
    """A 400 that names the parameter at fault."""
    return refused(Code.INVALID, f"{param}: {message}", remedy=remedy, param=param)


def as_refusal(error: LoopwrightError) -> RefusedError:
    """A LoopwrightError as an answer to a client. If it is no refusal, it is a server error."""
    if isinstance(error, RefusedError):
        return error
    code = Code.ENGINE if isinstance(error, EngineError) else Code.INTERNAL
    return refused(code, error.message, remedy=error.remedy)


def code_of(error: RefusedError) -> Code:
    """The kind of a refusal. A refusal that was raised below the gateway has only a status."""
    code = error.facts.get("code")
    if isinstance(code, Code):
        return code
    status = error.facts.get("status", 400)
    return next((known for known, its in STATUS.items() if its == status), Code.INVALID)
