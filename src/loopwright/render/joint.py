"""The joint: the text that the template writes between a sampled reply and the model's next turn.

A joint exists only if the template leaves everything before it as the model saw it (T6): the messages before the reply
unchanged, and in the reply the same content, thoughts and calls, even if they are written differently.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from loopwright.render.canonical import value_of
from loopwright.render.control import ControlTokens
from loopwright.render.hermes import CALL_END, THINK_END, Syntax, parse_text
from loopwright.render.template import ChatTemplate
from loopwright.types import Message, Thinking, Tool


class Joints:
    """Finds joints by rendering a conversation with a mark in place of the reply.

    With `Thinking.KEEP` it does not matter what the template does with thoughts: the stream has them and keeps them.
    """

    def __init__(self, template: ChatTemplate, thinking: Thinking, control: ControlTokens) -> None:
        self._template = template
        self._control = control
        self._keeps_thoughts = thinking is Thinking.KEEP and template.thoughts

    def between(self, history: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool]) -> str | None:
        """The text after the last reply of `history`, or None if the template rewrites what is before it. Text that
        spells a control token is replaced by placeholders."""
        history, new = self._template.hidden(history), self._template.hidden(new)
        tools = self._template.hidden_tools(tools)
        if self._keeps_thoughts:
            history = [_without_thought(message) for message in history]
        *earlier, reply = history
        if (joint := self._after(earlier, reply, new, tools)) is None:
            return None
        before = self._before(earlier, tools)
        real = self._template.write_hidden([*history, *new], tools)
        if not (real.startswith(before) and real.endswith(joint)):
            return None
        kept = real.removeprefix(before).removesuffix(joint)
        return joint if self._says_the_same(kept, reply) else None

    def _after(
        self, earlier: Sequence[Message], reply: Message, new: Sequence[Message], tools: Sequence[Tool]
    ) -> str | None:
        mark = _mark([*earlier, reply, *new])
        marked = self._template.write_hidden([*earlier, _marked(reply, mark), *new], tools)
        if marked.count(mark) != 1:
            return None
        after = marked.partition(mark)[2]
        if not reply.get("tool_calls"):
            return after
        _, end, joint = after.partition(CALL_END)
        return joint if end else None

    def _before(self, earlier: Sequence[Message], tools: Sequence[Tool]) -> str:
        if not self._keeps_thoughts:
            return self._template.write_hidden(earlier, tools)
        return self._template.write_hidden(earlier, tools, opening=False) + self._template.header

    def _says_the_same(self, kept: str, reply: Message) -> bool:
        content = str(reply.get("content") or "")
        calls = reply.get("tool_calls") or ()
        thoughts = self._template.thoughts and THINK_END not in self._control.shown(content)
        thinking = thoughts and self._template.opens_thought and not self._keeps_thoughts
        read = parse_text(kept, Syntax(calls=bool(calls), thoughts=thoughts, thinking=thinking))
        said = [(call["name"], self._control.hide_in(value_of(call["arguments"]))) for call in calls]
        return (
            read.content.strip() == content.strip()
            and read.reasoning.strip() == str(reply.get("reasoning") or "").strip()
            and [(call.name, self._control.hide_in(value_of(call.arguments))) for call in read.tool_calls] == said
        )


def _without_thought(message: Message) -> Message:
    """The message without its thought. A thought inside the content stays, because the template does not treat it as a
    field."""
    return {key: value for key, value in message.items() if key != "reasoning"}


def _marked(reply: Message, mark: str) -> Message:
    """The reply with a mark at its end: in its last call, or instead of its content."""
    if calls := reply.get("tool_calls"):
        *others, last = calls
        return {**reply, "tool_calls": (*others, {**last, "arguments": json.dumps({"mark": mark})})}
    return {**reply, "content": mark}


def _mark(messages: Sequence[Message]) -> str:
    """A text that is in none of the messages, and that no template has a reason to change."""
    mark = "loopwright-reply"
    texts = [str(message) for message in messages]
    while any(mark in text for text in texts):
        mark += "-x"
    return mark
