"""Decides whether two histories are the same: they are if the model saw the same, no matter how a client writes them.

Clients serialise tool arguments again, add ids and null fields, and trim texts that they send back. So messages are
compared only by role, text and calls: an assistant's text without the space around it, and arguments as JSON values.
Reasoning is left out, because clients drop it. `same_thoughts` says whether the reasoning that a client kept could be
the sampled one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from hashlib import blake2b

import orjson

from loopwright.render.call_json import without_lone_surrogates
from loopwright.types import Message, Tool

SIZE = 16
LARGEST_EXACT_FLOAT = 1 << 53
"""JavaScript has only floats: above this number, a client may send back another integer than it got."""


TEXT = "text"
"""The role of what the agent wrote in a conversation without a chat template. Such a message names the turn that it
continues in `after`, because texts and ids are continued exactly."""

EMPTY = bytes(SIZE)
"""The digest of a history without messages."""


def chained(digest: bytes, message: Message) -> bytes:
    """The digest of a history that has one more message."""
    return blake2b(digest + fingerprint(message), digest_size=SIZE).digest()


def prefix_digests(messages: Sequence[Message], before: bytes = EMPTY) -> list[bytes]:
    """For each message, the digest of the history up to and with it."""
    digests = []
    for message in messages:
        before = chained(before, message)
        digests.append(before)
    return digests


def text_digest(text: str) -> bytes:
    return blake2b(_spelled(text), digest_size=SIZE).digest()


def tools_digest(tools: Sequence[Tool]) -> bytes:
    return _tools_digest(tools) if tools else NO_TOOLS


def _tools_digest(tools: Sequence[Tool]) -> bytes:
    return blake2b(orjson.dumps(list(tools), option=orjson.OPT_SORT_KEYS), digest_size=SIZE).digest()


NO_TOOLS = _tools_digest(())


def fingerprint(message: Message) -> bytes:
    """The parts by which messages are compared, as JSON text."""
    if message["role"] == TEXT and "after" in message:
        return _spelled((TEXT, message["content"], message.get("ids"), message["after"]))
    if "ids" in message and message["role"] != "assistant":
        return _spelled((message["role"], message["content"], message["ids"]))
    if message["role"] != "assistant":
        return _spelled((message["role"], message["content"]))
    calls = [(call["name"], _arguments(call["arguments"])) for call in message.get("tool_calls", ())]
    return _spelled(("assistant", message["content"].strip(), calls))


def _spelled(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        # Half a surrogate pair: orjson refuses it, but an agent in this process may send it.
        return json.dumps(value).encode()


def same_thoughts(echoed: Message, sampled: Message) -> bool:
    """Whether the message that a client sends back can be the sampled reply: its reasoning is whole, trimmed or
    missing."""
    kept = str(echoed.get("reasoning") or "").strip()
    return not kept or kept in str(sampled.get("reasoning") or "")


def _arguments(written: str) -> str:
    if not written.strip():
        return "{}"
    try:
        if r"\ud" in written or r"\uD" in written:
            written = without_lone_surrogates(json.dumps(json.loads(written), ensure_ascii=False))
        value = json.loads(written, parse_float=_float, parse_int=_int, parse_constant=lambda constant: None)
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except (ValueError, TypeError, RecursionError):
        return written.strip()


def _float(written: str) -> float | int | None:
    value = float(written)
    if abs(value) >= sys.float_info.max:
        # JavaScript writes null for a number that is too large; we write the largest float. Both must compare as equal.
        return None
    return int(value) if abs(value) < LARGEST_EXACT_FLOAT and value.is_integer() else value


def _int(written: str) -> float | int | None:
    # Only short numbers are read as integers, because Python refuses integers with thousands of digits.
    return int(written) if len(written) < len(str(LARGEST_EXACT_FLOAT)) else _float(written)
