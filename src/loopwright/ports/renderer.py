"""Messages to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loopwright.types import Message


class Renderer(Protocol):
    """Knows one tokenizer and its chat template."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokens that end an assistant's turn."""
        ...

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The whole conversation, ready for the assistant's next turn."""
        ...

    def extend(
        self, stream: Sequence[int], history: Sequence[Message], new: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """`stream` (the prompt and the sampled ids of `history`) continued by `new`, ready for the next turn.

        Nothing of `stream` is tokenised again (T5). None when the template would have rewritten the history: the
        caller then renders afresh and starts a new chain.
        """
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Sampled ids as the text that an agent sees: without special tokens."""
        ...

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Each id as a human would read it, for showing trajectories token by token."""
        ...
