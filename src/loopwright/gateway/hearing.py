"""Reports answers to listeners while they are sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    """Receives an answer while it is sampled."""

    def head(self, head: Head) -> None: ...

    def delta(self, sample: int, delta: Delta) -> None: ...


class SampleReader:
    """Reads one sample while it is sampled."""

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


def tell_whole(answers: Sequence[Answer], listener: Listener | None) -> None:
    """Report the committed answers to one call as if they were sampled now."""
    if listener is None:
        return
    first = answers[0]
    listener.head(Head(first.id, first.created, first.prompt_tokens, first.cached_tokens, first.prompt_ids))
    for sample, answer in enumerate(answers):
        for delta in _deltas(answer.parsed):
            listener.delta(sample, delta)


def _deltas(parsed: Parsed) -> Iterator[Delta]:
    if parsed.reasoning:
        yield ReasoningDelta(parsed.reasoning)
    if parsed.content:
        yield ContentDelta(parsed.content)
    for index, call in enumerate(parsed.tool_calls):
        yield ToolCallStart(index, call.name, call.id)
        yield ToolCallArguments(index, call.arguments)
        yield ToolCallEnd(index)
