"""A renderer whose tokens are single characters, so that a test can read its token ids and needs no tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from loopwright.render.detokenize import Detokenizer
from loopwright.render.grammar import answer_grammar
from loopwright.render.hermes import Syntax, hermes_calls
from loopwright.render.hermes_stream import HermesStream
from loopwright.render.plain_tools import plain_messages
from loopwright.types import AnswerForm, Constraint, Message, Parsed, Tool, parsed_of

END = 0
"""The token that ends a turn."""


def encode_chars(text: str) -> tuple[int, ...]:
    """One id per character, and the end of the turn."""
    return (*(ord(character) for character in text), END)


class CharRenderer:
    """A `Renderer` that writes `role: content` and an end token for each message, and tools in Hermes' way."""

    name = "characters"
    stop_token_ids = (END,)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, most: int | None = None
    ) -> tuple[int, ...]:
        plain = plain_messages(messages, tools, result_role="tool")
        said = (encode_chars(f"{message['role']}: {message['content']}") for message in plain)
        return (*(token for message in said for token in message), *_OPENING)

    def extend(
        self,
        stream: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        most: int | None = None,
    ) -> tuple[int, ...] | None:
        closed = stream if stream[-1:] == (END,) else (*stream, END)
        return (*closed, *self.render(new))

    def answered(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        written = plain_messages(messages[-1:], (), result_role="tool")
        return self.render(messages[:-1], tools), encode_chars(str(written[0]["content"]))

    def parse(
        self, ids: Sequence[int], tools: Sequence[Tool] | None = None, prompt: Sequence[int] | None = None
    ) -> Parsed:
        parser = self.parser(tools, prompt)
        return parsed_of([*parser.feed(ids), *parser.finish()])

    def parser(self, tools: Sequence[Tool] | None = None, prompt: Sequence[int] | None = None) -> HermesStream:
        calls = tools is None or len(tools) > 0
        return HermesStream(Detokenizer(self.text, lambda token: False), Syntax(calls=calls))

    def constraint(self, form: AnswerForm, prompt: Sequence[int]) -> Constraint:
        return answer_grammar(form, hermes_calls(lambda text: text), None)

    def text(self, ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in ids if token != END)

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple("<end>" if token == END else chr(token) for token in ids)


_OPENING = tuple(ord(character) for character in "assistant: ")
