"""Reads completions in the Hermes format: content, thoughts in `<think>`, and each call as JSON in `<tool_call>`.

The invariants: every delta is final, no matter how the text is split into pieces. A call is reported only when it is
complete and is JSON. Text that is no call is content, unchanged. White space around a call or a thought is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loopwright.render.call_json import BLANK, OpenTextError, read_call
from loopwright.render.grammar import CallSyntax
from loopwright.types import (
    ContentDelta,
    Delta,
    Parsed,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    parsed_of,
)

CALL, CALL_END = "<tool_call>", "</tool_call>"
THINK, THINK_END = "<think>", "</think>"


def hermes_calls(mark: Callable[[str], str | int]) -> CallSyntax:
    """How calls are written, where `mark` is the id of a mark that is a token of its own."""
    return CallSyntax((mark(CALL), '\n{"name": "'), ('", "arguments": ',), ("}\n", mark(CALL_END)), ("\n",))


@dataclass(frozen=True, slots=True)
class Syntax:
    """What to look for. `thinking` means that the prompt ended inside a thought."""

    calls: bool = True
    thoughts: bool = False
    thinking: bool = False


def parse_text(text: str, syntax: Syntax) -> Parsed:
    """A whole completion."""
    parser = HermesParser(syntax)
    return parsed_of([*parser.feed(text), *parser.finish()])


class HermesParser:
    """Reads one completion as it arrives."""

    def __init__(self, syntax: Syntax) -> None:
        self._calls_wanted = syntax.calls
        self._held = ""
        self._blank = ""
        self._count = 0
        self._tried = 0
        self._ended = False
        self._drops_blank = syntax.thinking
        self._read = self._in_thought if syntax.thinking else self._at_start if syntax.thoughts else self._in_content

    def feed(self, text: str) -> list[Delta]:
        self._held += text
        deltas: list[Delta] = []
        while (step := self._read()) is not None:
            deltas.extend(step)
        return deltas

    def finish(self) -> list[Delta]:
        self._ended = True
        deltas = self.feed("")
        if self._blank and not self._count and self._read == self._in_content:
            deltas.append(ContentDelta(self._blank))
        self._blank = ""
        return deltas

    # Each of these methods takes what is certain from the held text. It returns None if it can do no more.

    def _at_start(self) -> list[Delta] | None:
        """Read the beginning. A thought can only come first."""
        text = self._held.lstrip(BLANK)
        if text.startswith(THINK):
            self._held = text.removeprefix(THINK)
            self._read, self._drops_blank = self._in_thought, True
        elif self._ended or not THINK.startswith(text):
            self._read = self._in_content
        else:
            return None
        return []

    def _in_thought(self) -> list[Delta] | None:
        thought, end, rest = self._held.partition(THINK_END)
        if end:
            self._held = rest
            deltas = self._words(thought, ReasoningDelta)
            self._blank, self._drops_blank = "", True
            self._read = self._in_content
            return deltas
        return self._words(self._take_certain(THINK_END), ReasoningDelta) or None

    def _in_content(self) -> list[Delta] | None:
        if not self._calls_wanted:
            text, self._held = self._held, ""
            return self._words(text, ContentDelta) or None
        text, start, rest = self._held.partition(CALL)
        if start:
            self._held, self._tried = rest, 0
            self._read = self._in_call
            return self._words(text, ContentDelta)
        return self._words(self._take_certain(CALL), ContentDelta) or None

    def _in_call(self) -> list[Delta] | None:
        end = self._held.find(CALL_END, self._tried)
        if end < 0 and not self._ended:
            self._tried = max(0, len(self._held) - len(CALL_END) + 1)
            return None
        body = self._held if end < 0 else self._held[:end]
        try:
            call = read_call(body)
        except OpenTextError:
            if end >= 0:
                # The end mark is inside a string of the call's JSON, so the call ends later.
                self._tried = end + 1
                return []
            return self._no_call()
        except ValueError:
            return self._no_call()
        self._held = "" if end < 0 else self._held[end + len(CALL_END) :]
        self._read, self._blank, self._drops_blank = self._in_content, "", False
        index, self._count = self._count, self._count + 1
        return [ToolCallStart(index, call.name), ToolCallArguments(index, call.arguments), ToolCallEnd(index)]

    def _no_call(self) -> list[Delta]:
        """The mark was only text. What follows it is read again."""
        self._read = self._in_content
        return self._words(CALL, ContentDelta)

    def _take_certain(self, mark: str) -> str:
        """Take the held text up to a possible beginning of `mark`."""
        if self._ended:
            taken, self._held = self._held, ""
            return taken
        longest = min(len(mark) - 1, len(self._held))
        begun = next((size for size in range(longest, 0, -1) if mark.startswith(self._held[-size:])), 0)
        cut = len(self._held) - begun
        taken, self._held = self._held[:cut], self._held[cut:]
        return taken

    def _words(self, text: str, kind: type[ContentDelta] | type[ReasoningDelta]) -> list[Delta]:
        """`text` as a delta. White space at its end is held back until it is known what follows."""
        text = self._blank + text
        if self._drops_blank:
            text = text.lstrip(BLANK)
            self._drops_blank = not text
        words = text.rstrip(BLANK) if self._calls_wanted or kind is ReasoningDelta else text
        self._blank = text[len(words) :]
        return [kind(words)] if words else []
