"""Computes a lower bound for the number of tokens of a text, without encoding it.

The invariant: a text never has fewer tokens. This follows from the longest token of a vocabulary, if every character of
the text ends up in some token. For tokenizers where this is not known there is no bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopwright.errors import ContextError
from loopwright.render.words import describe_part

KEEP_ALL = frozenset({"ByteLevel", "Metaspace", "Digits"})
MOST_COMPOSED = 4
"""How many characters can become one, at most, when a text is composed (NFC)."""


def longest_token(core: Any, added: Mapping[int, Any]) -> int | None:
    """The largest number of characters that one token stands for. None if there is no limit."""
    if core is None or any(token.lstrip or token.rstrip for token in added.values()):
        return None
    cuts = _steps(core.pre_tokenizer, "pretokenizers")
    normal = _steps(core.normalizer, "normalizers")
    if not (all(map(_keeps_all, cuts)) and all(map(_shortens_little, normal)) and _knows_every_byte(core, cuts)):
        return None
    longest = max(map(len, core.get_vocab(with_added_tokens=True)), default=1)
    return longest * (MOST_COMPOSED if any(step["type"] == "NFC" for step in normal) else 1)


def too_long(tokens: int, most: int) -> ContextError:
    return ContextError(
        f"a prompt of at least {tokens} tokens does not fit a context of {most}",
        remedy="shorten the prompt, leave such tasks out, or raise model.max_context if the model allows it",
        tokens=tokens,
        max_context=most,
    )


def _steps(part: Any, name: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    read = describe_part(part)
    return list(read[name]) if read["type"] == "Sequence" else [read]


def _keeps_all(step: Mapping[str, Any]) -> bool:
    return step["type"] in KEEP_ALL or (step["type"] == "Split" and step["behavior"] != "Removed")


def _shortens_little(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Replace":
        return "String" in step["pattern"] and len(step["pattern"]["String"]) <= len(step["content"])
    return step["type"] in ("NFC", "Prepend")


def _knows_every_byte(core: Any, cuts: list[dict[str, Any]]) -> bool:
    """Whether no text becomes one unknown token."""
    model = core.model
    in_bytes = getattr(model, "byte_fallback", False) or any(step["type"] == "ByteLevel" for step in cuts)
    return type(model).__name__ == "BPE" and bool(in_bytes)
