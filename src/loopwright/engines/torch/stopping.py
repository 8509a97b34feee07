"""When a sequence has reached one of its stop tokens or stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loopwright.types import Sampling

MARGIN = 4
"""Extra tokens decoded before a possible match, so that a character split over tokens, or a space that decoding
strips from the front, is never part of it."""


class Stopping:
    """Stop strings are looked for in the decoded tail: they may begin and end inside tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def reached(self, sampling: Sampling, ids: Sequence[int], before: Sequence[int] = ()) -> bool:
        """Whether the last of `ids` ends the answer. `before` are those that an earlier call sampled of it."""
        if ids[-1] in sampling.stop_token_ids:
            return True
        if not sampling.stop:
            return False
        longest = max(len(stop.encode()) for stop in sampling.stop)
        reach = longest + MARGIN
        tail: str = self._tokenizer.decode([*before[-reach:], *ids[-reach:]][-reach:], skip_special_tokens=False)
        return any(stop in tail for stop in sampling.stop)
