"""Answers as those hear them who listen while they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loopwright.gateway.call import Answer
from loopwright.gateway.dialects.dialect import Head
from loopwright.gateway.stopping import CutDeltas
from loopwright.ports import StreamParser
from loopwright.types import (
    ContentDelta,
    Delta,
    Generation,
    Parsed,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    parsed_of,
)


class Listener(Protocol):
    """Hears of an answer while it is made."""

    def head(self, head: Head) -> None: ...

    def delta(self, sample: int, delta: Delta) -> None: ...


class SampleReader:
    """Reads one sample while it is made."""

    def __init__(self, parser: StreamParser, stops: Sequence[str], number: int, listener: Listener | None) -> None:
        self._parser = parser
        self._cut = CutDeltas(stops)
        self._number = number
        self._listener = listener
        self._heard: list[Delta] = []

    @property
    def stop(self) -> str | None:
        return self._cut.found

    def hear(self, part: Generation) -> None:
        self._tell(self._cut.feed(self._parser.feed(part.ids)))

    def finish(self) -> Parsed:
        self._tell([*self._cut.feed(self._parser.finish()), *self._cut.finish()])
        return parsed_of(self._heard)

    def _tell(self, deltas: Sequence[Delta]) -> None:
        self._heard.extend(deltas)
        if self._listener is not None:
            for delta in deltas:
                self._listener.delta(self._number, delta)


def tell_whole(answer: Answer, listener: Listener | None) -> None:
    """A committed answer, told as if it were made now."""
    if listener is None:
        return
    listener.head(Head(answer.id, answer.created, answer.prompt_tokens, answer.cached_tokens))
    parsed = answer.parsed
    if parsed.reasoning:
        listener.delta(0, ReasoningDelta(parsed.reasoning))
    if parsed.content:
        listener.delta(0, ContentDelta(parsed.content))
    for index, call in enumerate(parsed.tool_calls):
        for delta in (ToolCallStart(index, call.name, call.id), ToolCallArguments(index, call.arguments)):
            listener.delta(0, delta)
        listener.delta(0, ToolCallEnd(index))
