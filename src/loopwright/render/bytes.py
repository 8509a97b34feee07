"""Reading the tokens of a byte-level vocabulary, in which every byte is written as one printable character."""

from __future__ import annotations

import re

PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
"""Bytes that stand for themselves; the others are written as the characters from U+0100 on, in order."""

OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]

BYTES = {chr(byte): byte for byte in PRINTABLE} | {chr(0x100 + n): byte for n, byte in enumerate(OTHERS)}


def byte_level(token: str) -> str:
    r"""The token's text, with bytes that are no whole character as `\xNN`; other vocabularies' tokens as they are."""
    if not all(character in BYTES for character in token):
        return token
    return bytes(BYTES[character] for character in token).decode("utf-8", errors="backslashreplace")


def is_byte_token(token: str) -> bool:
    """Whether the token is one raw byte of a vocabulary that falls back to bytes, like `<0xE2>`."""
    return re.fullmatch(r"<0x[0-9A-F]{2}>", token) is not None
