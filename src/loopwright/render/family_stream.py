"""Reads a completion while it is sampled, with a parser that can only read whole completions.

The invariant: what was reported stays true. So the completion is parsed again as it grows, and only the part is
reported that later tokens cannot change: nothing after a call that may have begun, no white space that may be at the
end, and no half marker. The steps between two parses grow, so that the total work stays in proportion to the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loopwright.render.call_json import BLANK
from loopwright.render.detokenize import UNKNOWN
from loopwright.types import (
    ContentDelta,
    Delta,
    Parsed,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

FEWEST = 4
"""It waits for at least this many new tokens before it parses again, and at least for an eighth of the present
length."""

LONGEST_MARKER = 32
"""The length of the longest marker in characters, for markers that are several tokens."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The completion so far, and whether it tried to call a tool, successfully or not."""

    parsed: Parsed
    tried_to_call: bool = False


class FamilyStream:
    """A `StreamParser` that uses a reader of whole completions."""

    def __init__(self, read: Callable[[Sequence[int]], Reading]) -> None:
        self._read = read
        self._ids: list[int] = []
        self._due = FEWEST
        self._told = Parsed()

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        self._ids.extend(ids)
        if len(self._ids) < self._due:
            return []
        self._due = len(self._ids) + max(FEWEST, len(self._ids) // 8)
        seen = self._read(self._ids)
        if seen.tried_to_call:
            return []
        return self._tell(Parsed(_certain(seen.parsed.content), _certain(seen.parsed.reasoning)))

    def finish(self) -> list[Delta]:
        whole = self._read(self._ids).parsed
        deltas = self._tell(whole)
        for index, call in enumerate(whole.tool_calls):
            start = ToolCallStart(index, call.name, call.id)
            deltas += [start, ToolCallArguments(index, call.arguments), ToolCallEnd(index)]
        return deltas

    def _tell(self, seen: Parsed) -> list[Delta]:
        told = self._told
        reasoning = _news(told.reasoning, seen.reasoning)
        content = _news(told.content, seen.content)
        self._told = Parsed(told.content + content, told.reasoning + reasoning)
        deltas: list[Delta] = [ReasoningDelta(reasoning)] if reasoning else []
        return [*deltas, ContentDelta(content)] if content else deltas


def _certain(text: str) -> str:
    """The text before a possible beginning of a marker. It is empty if the text begins like JSON, because the whole
    text may then be a call."""
    if text.lstrip(BLANK).startswith(("{", "[")):
        return ""
    marker = text.rfind("<", len(text) - LONGEST_MARKER if len(text) > LONGEST_MARKER else 0)
    return text[: marker if marker >= 0 else None].rstrip(BLANK + UNKNOWN)


def _news(told: str, seen: str) -> str:
    return seen.removeprefix(told) if seen.startswith(told) else ""
