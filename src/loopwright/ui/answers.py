"""Answers as JSON, none of them larger than MOST_BYTES. Long texts of models and users are cut, and say how long they
were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from starlette.responses import Response

from loopwright.errors import RefusedError

MOST_BYTES = 2_000_000
TEXT_CHARACTERS = 20_000
"""What is sent of one text at first; the page asks for the rest."""
DEEPEST = 60
"""What is nested deeper is left out."""
LARGEST = 1 << 53
"""Browsers round whole numbers above it."""
NO_STORE = {"cache-control": "no-store"}
OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def json_answer(value: Any) -> Response:
    body = encoded(value)
    if len(body) > MOST_BYTES:
        raise RefusedError(
            f"this answer would have {len(body):,} bytes, more than the {MOST_BYTES:,} that a page gets at once",
            remedy="`loopwright show` and `loopwright rollout --jsonl` print everything",
            status=413,
        )
    return Response(body, media_type="application/json", headers=NO_STORE)


def encoded(value: Any) -> bytes:
    """The value as JSON, whatever is in it."""
    try:
        return orjson.dumps(value, default=_plain, option=OPTIONS)
    except orjson.JSONEncodeError:
        # A name that no text of UTF-8 can hold, or a number that no browser can.
        return orjson.dumps(cut(value, MOST_BYTES), default=_plain, option=OPTIONS)


def fitting(value: Any, most_bytes: int) -> Any:
    """The value, cut so that it takes about so many bytes: with many long texts, each of them is shown shorter."""
    for most in (TEXT_CHARACTERS, 5_000, 1_000, 200):
        shown = cut(value, most)
        if len(encoded(shown)) <= most_bytes:
            break
    return shown


def numbers(values: Sequence[float], digits: int = 6) -> list[float | None]:
    """Finite numbers with so many significant digits; None for the others."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def cut(value: Any, most: int = TEXT_CHARACTERS, depth: int = 0) -> Any:
    """The value with every long text shortened: `{"text": ..., "characters": ...}` in its place. UTF-8 cannot hold a
    lone surrogate, which a byte-level model can sample, so it is shown as its escape. A number that browsers would
    round is shown as a text."""
    if isinstance(value, str):
        text = value if len(value) <= most else value[:most]
        shown = text.encode("utf-8", "backslashreplace").decode()
        return shown if len(value) <= most else {"text": shown, "characters": len(value)}
    if isinstance(value, Mapping | list | tuple) and depth >= DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {str(cut(str(name), 200)): cut(inner, most, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [cut(inner, most, depth + 1) for inner in value]
    return str(value) if isinstance(value, int) and abs(value) > LARGEST else value


def _plain(value: Any) -> Any:
    return str(value)
