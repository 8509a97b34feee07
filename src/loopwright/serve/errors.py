"""One JSON shape for every error that leaves a server: what is wrong, its kind, and what to do (S4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopwright.errors import LoopwrightError

SEE_LOG = "see the server's own log"


def error_body(error: LoopwrightError) -> Mapping[str, Any]:
    return {"error": {"type": type(error).__name__, "message": error.message, "remedy": error.remedy}}


def read_error(
    body: Any, kinds: Mapping[str, type[LoopwrightError]], default: type[LoopwrightError]
) -> LoopwrightError:
    """The error in a body that `error_body` made, as one of `kinds`. Any other body becomes a `default`."""
    said = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(said, Mapping):
        return default(f"the server answered {str(body)[:200]!r}", remedy=SEE_LOG)
    kind = kinds.get(str(said.get("type")), default)
    return kind(str(said.get("message", "")), remedy=str(said.get("remedy", SEE_LOG)))
