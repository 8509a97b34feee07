"""A model's chat template: it writes conversations as text, and may support tools and thoughts.

What it supports is found out by rendering small conversations, not by its name. Its own format for tools is used if a
call that it writes can be read back. Otherwise tools are written in the Hermes format into plain messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jinja2 import TemplateError

from loopwright.errors import ConversationError, ModelError
from loopwright.render.canonical import template_messages, template_tools, value_of
from loopwright.render.control import ControlTokens
from loopwright.render.hermes import THINK, THINK_END, Syntax, parse_text
from loopwright.render.plain_tools import plain_messages
from loopwright.render.probes import ANSWERED, ASKED, CALLED, RESULT, THOUGHT, THOUGHT_IN_TEXT, TOOL
from loopwright.render.safe_messages import hidden_arguments, hidden_messages, hidden_values, thought_apart
from loopwright.types import Message, Tool

CLOCK = "strftime_now"
"""The function that templates call to write today's date."""


class TemplateTokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    @property
    def chat_template(self) -> Any: ...
    def apply_chat_template(
        self, conversation: Any, /, *, tools: Any, add_generation_prompt: bool, tokenize: bool
    ) -> Any: ...


class ChatTemplate:
    """Writes canonical conversations."""

    def __init__(self, tokenizer: TemplateTokenizer, control: ControlTokens) -> None:
        if not tokenizer.chat_template:
            raise ModelError(
                "the tokenizer has no chat template, so messages cannot be turned into a prompt",
                remedy="use an instruct or chat model, or put a chat_template.jinja into the model's folder",
            )
        self._tokenizer = tokenizer
        self._control = control
        self.thoughts = THINK_END in str(tokenizer.chat_template)
        self.tells_time = CLOCK in str(tokenizer.chat_template)
        """Whether its output depends on the clock."""
        self._reads_thoughts = False
        self._native = self._writes_tools()
        self._result_role = "tool" if self._writes([ASKED, ANSWERED, RESULT], "loopwright-result") else "user"
        before = self.write([ASKED], opening=False)
        self.opening = self.write([ASKED]).removeprefix(before)
        """The text before the first word of an assistant's turn."""
        answered = self.write([ASKED, ANSWERED], opening=False)
        self.closing = answered.partition(str(ANSWERED["content"]))[2]
        """The text after the last word of an assistant's turn."""
        self.answer_opening = self._before_answer(self.write([ASKED]), answered)
        """The text between the opening and the first word of an answer: the end of an open thought, or nothing. None if
        the template writes an answer in another way."""
        self._reads_thoughts = self.thoughts and control.knows(THINK_END) and self._finds_thoughts()

    @property
    def header(self) -> str:
        """The opening without the beginning of a thought."""
        return self.opening.partition(THINK)[0] if self.opens_thought else self.opening

    @property
    def opens_thought(self) -> bool:
        """Whether the model begins inside a thought."""
        return self.thoughts and self.opening.rstrip().endswith(THINK)

    def hidden(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with placeholders where they spell a control token (T9)."""
        if self._reads_thoughts:
            messages = [thought_apart(message, opened=self.opens_thought) for message in messages]
        return hidden_messages(messages, self._control)

    def hidden_tools(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        return self._control.hide_in_tools(tools)

    def write(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, opening: bool = True) -> str:
        """The conversation as text, with placeholders where words spell a control token. With `opening`, it ends with
        the opening of the assistant's next turn."""
        return self.write_hidden(self.hidden(messages), self.hidden_tools(tools), opening=opening)

    def write_hidden(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, opening: bool = True) -> str:
        """Like `write`, for messages and tools that are already hidden."""
        try:
            if not self._native:
                messages = hidden_arguments(messages, self._control)
                messages, tools = plain_messages(messages, tools, self._result_role), ()
            return self._apply(messages, tools, opening=opening)
        except (TemplateError, TypeError, ValueError, KeyError, RecursionError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ConversationError(
                f"the model's chat template refuses a conversation of {roles}: {error}",
                remedy="send text contents, calls with name and arguments, and roles in an order that the model knows",
            ) from error

    def _apply(self, messages: Sequence[Message], tools: Sequence[Tool], *, opening: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                hidden_values(template_messages(messages), self._control),
                tools=template_tools(tools),
                add_generation_prompt=opening,
                tokenize=False,
            )
        )

    @staticmethod
    def _before_answer(opened: str, answered: str) -> str | None:
        return (
            answered.removeprefix(opened).partition(str(ANSWERED["content"]))[0]
            if answered.startswith(opened)
            else None
        )

    def _writes_tools(self) -> bool:
        """Whether the template shows tools and results, and writes calls that can be read back."""
        if not self._writes([ASKED], "loopwright-description", tools=[TOOL]):
            return False
        if not self._writes([ASKED, CALLED, RESULT], "loopwright-result", tools=[TOOL]):
            return False
        before, after = self._tried([ASKED], [TOOL]), self._tried([ASKED, CALLED], [TOOL])
        read = parse_text(after.removeprefix(before), Syntax()).tool_calls
        return [(call.name, value_of(call.arguments)) for call in read] == [
            (call["name"], value_of(call["arguments"])) for call in CALLED["tool_calls"]
        ]

    def _finds_thoughts(self) -> bool:
        """Whether the template treats a thought in an answer's text like a thought in its own field."""
        texts = [self._tried([ASKED, *more], []) for more in ([THOUGHT_IN_TEXT], [THOUGHT_IN_TEXT, ASKED])]
        fields = [self._tried([ASKED, *more], []) for more in ([THOUGHT], [THOUGHT, ASKED])]
        return texts == fields

    def _writes(self, messages: Sequence[Message], words: str, tools: Sequence[Tool] = ()) -> bool:
        return words in self._tried(messages, tools)

    def _tried(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        try:
            return self._apply(messages, tools, opening=False)
        except (TemplateError, TypeError, ValueError, KeyError):
            return ""
