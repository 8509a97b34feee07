"""Reads the tokens of a byte-level vocabulary, which writes every byte as one printable character."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence

PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
"""Bytes that are written as themselves. The others are written as the characters from U+0100 on, in order."""

OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]

BYTES = {chr(byte): byte for byte in PRINTABLE} | {chr(0x100 + n): byte for n, byte in enumerate(OTHERS)}


def byte_level(token: str) -> str:
    r"""The token's text. Bytes that are no whole character become `\xNN`. Tokens of other vocabularies stay
    unchanged."""
    if not all(character in BYTES for character in token):
        return token
    return bytes(BYTES[character] for character in token).decode("utf-8", errors="backslashreplace")


class ByteTokens(dict[int, bytes]):
    """The bytes of tokens, each looked up once. `spelled` returns a token as the vocabulary writes it, or None if there
    is none. `silent` tokens have no bytes."""

    def __init__(self, spelled: Callable[[int], str | None], silent: Container[int] = ()) -> None:
        super().__init__()
        self._spelled = spelled
        self._silent = silent

    def text(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.__getitem__, ids)).decode("utf-8", errors="replace")

    def __missing__(self, token: int) -> bytes:
        spelled = "" if token in self._silent else self._spelled(token) or ""
        written = all(character in BYTES for character in spelled)
        # A token that was added to the vocabulary is written as plain text.
        self[token] = bytes(map(BYTES.__getitem__, spelled)) if written else spelled.encode()
        return self[token]


def is_byte_token(token: str) -> bool:
    """Whether the token is one raw byte of a vocabulary that falls back to bytes, like `<0xE2>`."""
    return re.fullmatch(r"<0x[0-9A-F]{2}>", token) is not None
