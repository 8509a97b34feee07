"""Finds out whether a sequence has reached one of its stop tokens or stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loopwright.types import GenerateRequest

MARGIN = 4
"""How many more tokens before a possible match are decoded. So a character that is split over tokens, or a space that
decoding removes from the front, is never part of the match."""


class Stopping:
    """Stop strings are searched for in the decoded end of the text, because they may begin and end inside tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def reached(self, request: GenerateRequest, ids: Sequence[int]) -> bool:
        """Whether the last of `ids` ends the answer to `request`."""
        if ids[-1] in request.sampling.stop_token_ids:
            return True
        stops = request.sampling.stop
        if not stops:
            return False
        reach = max(len(stop.encode()) for stop in stops) + MARGIN
        before = request.prompt_ids[-request.sampled_before :] if request.sampled_before else ()
        tail: str = self._tokenizer.decode([*before[-reach:], *ids[-reach:]][-reach:], skip_special_tokens=False)
        return any(stop in tail for stop in stops)
