"""A model family of the `renderers` library, behind our port.

The library writes and reads each family's own syntax with its special tokens, and extends a sampled stream without
writing it again. If it cannot extend a stream, or would have to change it, the result is None (T5, T6). A call that it
finds malformed is content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from loopwright.errors import ConstraintError, ConversationError
from loopwright.render.call_json import read_call
from loopwright.render.canonical import template_messages, template_tools
from loopwright.render.family_stream import FamilyStream, Reading
from loopwright.render.family_syntax import found_calls, found_frame, writes_thoughts
from loopwright.render.family_tokenizer import LibraryTokenizer
from loopwright.render.grammar import CallSyntax, Pieces, ThoughtSyntax, answer_grammar
from loopwright.render.hermes import THINK, THINK_END
from loopwright.render.probes import ASKED, CALLED, RESULT, THOUGHT, THOUGHT_IN_TEXT, TOOL
from loopwright.render.safe_messages import hidden_messages, hidden_values, thought_apart
from loopwright.render.siblings import RenderedOnce
from loopwright.types import AnswerForm, Constraint, Message, Parsed, Tool, ToolCall

LIBRARY_ERRORS = (ValueError, TypeError, LookupError, AttributeError, AssertionError, RuntimeError)
"""What the library raises for conversations and completions that it does not understand. It has no own error types."""

PROMPT_TAIL = 16
"""If a prompt begins a thought, the mark for it is within this many last ids."""

T = TypeVar("T")


class FamilyRenderer:
    """A `Renderer` over a renderer of the library."""

    def __init__(self, name: str, family: Any, tokenizer: LibraryTokenizer) -> None:
        """`tokenizer` is the one with which `family` was made."""
        self.name = name
        self._family = family
        self._vocabulary = tokenizer.hiding()
        self._reads_thoughts = self._finds_thoughts()
        self._openings = tuple(self._opening(messages) for messages in ([ASKED], [ASKED, CALLED, RESULT]))
        self._stop_token_ids = tuple(int(token) for token in family.get_stop_token_ids())
        self._rendered = RenderedOnce(self._render_fitting)

    @property
    def is_prefix_stable(self) -> bool:
        """Whether a longer conversation's full rendering begins with the rendering of the shorter one."""
        return bool(self._family.is_prefix_stable)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stop_token_ids

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, most: int | None = None
    ) -> tuple[int, ...]:
        return self._rendered(messages, tools, most)

    def extend(
        self,
        stream: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        most: int | None = None,
    ) -> tuple[int, ...] | None:
        begin = self._last_reply(stream)
        if begin is None:
            return None
        self._vocabulary.check_size(_told(new), most, before=len(stream))
        bridge = self._family.bridge_to_next_turn
        prompt, reply = list(stream[:begin]), list(stream[begin:])
        bridged = self._ask(lambda: bridge(prompt, reply, self._shaped(new), tools=self._listed(tools)), new)
        ids = None if bridged is None else tuple(bridged.token_ids)
        return ids if ids is not None and ids[: len(stream)] == tuple(stream) else None

    def answered(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        before = self.render(messages[:-1], tools)
        whole = self._render(messages, tools, opening=False)
        if whole[: len(before)] != before:
            return None
        answer = whole[len(before) :]
        ends = [place for place, token in enumerate(answer) if token in self._stop_token_ids]
        return before, answer[: ends[0] + 1] if ends else answer

    def parse(
        self, ids: Sequence[int], tools: Sequence[Tool] | None = None, prompt: Sequence[int] | None = None
    ) -> Parsed:
        return self._read(ids, tools, prompt).parsed

    def parser(self, tools: Sequence[Tool] | None = None, prompt: Sequence[int] | None = None) -> FamilyStream:
        return FamilyStream(lambda ids: self._read(ids, tools, prompt))

    def constraint(self, form: AnswerForm, prompt: Sequence[int]) -> Constraint:
        if (frame := self._frame) is None:
            raise ConstraintError(
                f"it is not known how {self.name} models frame their answers", remedy="ask without a form of answer"
            )
        tail = self._vocabulary.spelling(list(prompt[-PROMPT_TAIL:])).rstrip()
        thought = ThoughtSyntax(self._mark(THINK), self._mark(THINK_END), tail.endswith(THINK))
        return answer_grammar(form, self._calls, thought if self._thinks else None, frame)

    @cached_property
    def _calls(self) -> CallSyntax | None:
        return found_calls(self._written, self._mark(THINK_END))

    @cached_property
    def _frame(self) -> tuple[Pieces, Pieces] | None:
        return found_frame(self._written, self._mark(THINK_END))

    @cached_property
    def _thinks(self) -> bool:
        return writes_thoughts(self._written, self._mark(THINK_END))

    def _mark(self, text: str) -> str | int:
        return self._vocabulary.mark(text)

    def _written(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Pieces | None:
        """The last message as the model would have sampled it, without the end of the turn."""
        try:
            answered = self.answered(messages, tools)
        except ConversationError:
            return None
        if answered is None:
            return None
        ids = list(answered[1])
        return self._vocabulary.marked(ids[:-1] if ids and ids[-1] in self._stop_token_ids else ids)

    def text(self, ids: Sequence[int]) -> str:
        return self._vocabulary.text(ids)

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return self._vocabulary.pieces(ids)

    def _read(self, ids: Sequence[int], tools: Sequence[Tool] | None, prompt: Sequence[int] | None) -> Reading:
        before = list(self._openings[0] if prompt is None else prompt)
        try:
            read = self._family.parse_response(list(ids), tools=template_tools(tools or ()), prompt_ids=before)
        except LIBRARY_ERRORS:
            return Reading(Parsed(self.text(ids)), tried_to_call=True)
        calls = [_call(attempt) if tools is None or tools else None for attempt in read.tool_calls]
        failed = [self._spelled(attempt, ids) for attempt, call in zip(read.tool_calls, calls, strict=True) if not call]
        content = "\n".join(part for part in (read.content, *failed) if part)
        parsed = Parsed(content, read.reasoning_content or "", tuple(call for call in calls if call))
        return Reading(parsed, tried_to_call=bool(read.tool_calls))

    def _render_fitting(self, messages: Sequence[Message], tools: Sequence[Tool], most: int | None) -> tuple[int, ...]:
        self._vocabulary.check_size(_told(messages), most)
        return self._render(messages, tools, opening=True)

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], *, opening: bool) -> tuple[int, ...]:
        def ids() -> tuple[int, ...]:
            shaped, listed = self._shaped(messages), self._listed(tools)
            return tuple(self._family.render_ids(shaped, tools=listed, add_generation_prompt=opening))

        return self._ask(ids, messages)

    def _shaped(self, messages: Sequence[Message]) -> Sequence[dict[str, Any]]:
        """The messages in the library's shape, with placeholders where they spell a control token (T9)."""
        if self._reads_thoughts:
            messages = [thought_apart(message, opened=False) for message in messages]
        control = self._vocabulary.control
        return hidden_values(template_messages(hidden_messages(messages, control)), control)

    def _listed(self, tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
        return template_tools(self._vocabulary.control.hide_in_tools(tools))

    def _finds_thoughts(self) -> bool:
        """Whether the family treats a thought in an answer's text like a thought in its own field."""
        text, field = (
            [self._family.render_ids(template_messages([ASKED, said, *more])) for more in ([], [ASKED])]
            for said in (THOUGHT_IN_TEXT, THOUGHT)
        )
        return bool(text == field)

    def _ask(self, library: Callable[[], T], messages: Sequence[Message]) -> T:
        try:
            return library()
        except LIBRARY_ERRORS as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ConversationError(
                f"{self.name} models know no conversation of {roles}: {error}",
                remedy="send text contents, calls with name and arguments, and roles in an order that the model knows",
            ) from error

    def _opening(self, messages: Sequence[Message]) -> tuple[int, ...]:
        tools = [TOOL] if len(messages) > 1 else []
        closed = self._render(messages, tools, opening=False)
        return self._render(messages, tools, opening=True)[len(closed) :]

    def _last_reply(self, stream: Sequence[int]) -> int | None:
        """The position where the latest reply begins: after the last opening of an assistant's turn."""
        header, ids = tuple(_shared(*self._openings)), tuple(stream)
        for place in range(len(ids) - len(header), -1, -1):
            if ids[place : place + len(header)] == header:
                longest = max((o for o in self._openings if ids[place : place + len(o)] == o), key=len, default=header)
                return place + len(longest)
        return None

    def _spelled(self, attempt: Any, ids: Sequence[int]) -> str:
        """The text of a malformed call, as it was written."""
        if attempt.token_span is None:
            return str(attempt.raw)
        begin, end = attempt.token_span
        return self._vocabulary.spelling(ids[begin:end])


def _told(messages: Sequence[Message]) -> str:
    """The texts of all messages that are not the assistant's. Every family writes these, no matter what it does with
    answers and thoughts."""
    others = (message for message in messages if message.get("role") in ("system", "user", "tool"))
    return "".join(str(message.get("content") or "").strip() for message in others)


def _shared(first: Sequence[int], second: Sequence[int]) -> Iterator[int]:
    """The common beginning."""
    for one, other in zip(first, second, strict=False):
        if one != other:
            return
        yield one


def _call(attempt: Any) -> ToolCall | None:
    """The call, with its arguments as the model wrote them if that is JSON. None if the call is malformed."""
    if attempt.status != "ok" or not attempt.name:
        return None
    try:
        spelled = read_call(attempt.raw)
    except ValueError:
        spelled = None
    if spelled is not None and spelled.name == attempt.name and _same_arguments(spelled.arguments, attempt.arguments):
        return ToolCall(spelled.name, spelled.arguments, attempt.id or "")
    return _spelled_again(attempt)


def _same_arguments(spelled: str, found: Any) -> bool:
    """Whether the library found the arguments that were written. It misses arguments that a model calls
    "parameters"."""
    return not found or json.loads(spelled) == found


def _spelled_again(attempt: Any) -> ToolCall | None:
    arguments = attempt.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, Mapping):
        return None
    return ToolCall(attempt.name, json.dumps(arguments, ensure_ascii=False), attempt.id or "")
