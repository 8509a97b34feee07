"""A renderer whose tokens are the characters themselves: a test can read its token ids, and needs no tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from loopwright.types import Message

END = 0
"""The token that ends a turn."""


def encode_chars(text: str) -> tuple[int, ...]:
    """One id per character, and the end of the turn."""
    return (*(ord(character) for character in text), END)


class CharRenderer:
    """A `Renderer` that writes `role: content` and an end token for each message."""

    stop_token_ids = (END,)

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        said = (encode_chars(f"{message['role']}: {message['content']}") for message in messages)
        return (*(token for message in said for token in message), *_OPENING)

    def extend(
        self, stream: Sequence[int], history: Sequence[Message], new: Sequence[Message]
    ) -> tuple[int, ...] | None:
        closed = stream if stream[-1:] == (END,) else (*stream, END)
        return (*closed, *self.render(new))

    def text(self, ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in ids if token != END)

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple("<end>" if token == END else chr(token) for token in ids)


_OPENING = tuple(ord(character) for character in "assistant: ")
