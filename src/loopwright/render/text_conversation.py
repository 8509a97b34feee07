"""Conversations without a chat template: a text that the model continues, more text, and so on.

They are recorded like any other. What the agent wrote is a message of the role `text`, with its ids if the agent sent
ids; what the model wrote is a message of the assistant. The invariant is that of all renderers (T5): a prompt that
continues a recorded stream extends it, and only what is new is encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter

from loopwright.errors import ConversationError
from loopwright.ports import Renderer, StreamParser
from loopwright.render.grammar import answer_grammar
from loopwright.render.recording.fingerprint import TEXT
from loopwright.render.recording.recorder import Recorder
from loopwright.types import AnswerForm, Constraint, FinishReason, Message, Parsed, Tool, parsed_of


def writer_of(messages: Sequence[Message], renderer: Renderer) -> Renderer:
    """The renderer of a conversation: `renderer`, unless the conversation is one of texts."""
    return TextRenderer(renderer) if messages and messages[0]["role"] == TEXT else renderer


class TextRenderer:
    """A `Renderer` of texts. `chat` is the model's usual renderer."""

    def __init__(self, chat: Renderer) -> None:
        self._chat = chat
        self.name = chat.name
        self.stop_token_ids = chat.stop_token_ids
        self.size = chat.size

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, most: int | None = None
    ) -> tuple[int, ...]:
        return tuple(chain.from_iterable(self._ids(message, opens=not n) for n, message in enumerate(messages)))

    def extend(
        self,
        stream: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        most: int | None = None,
    ) -> tuple[int, ...]:
        return (*stream, *(token for message in new for token in self._ids(message)))

    def begin(self, text: str) -> tuple[int, ...]:
        return self.plain(text)

    def answered(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.render(messages[:-1]), self._ids(messages[-1])

    def parse(
        self, ids: Sequence[int], tools: Sequence[Tool] | None = None, prompt: Sequence[int] | None = None
    ) -> Parsed:
        parser = self.plain_parser()
        return parsed_of([*parser.feed(ids), *parser.finish()])

    def parser(self, tools: Sequence[Tool] | None = None, prompt: Sequence[int] | None = None) -> StreamParser:
        return self.plain_parser()

    def plain(self, text: str, *, opens: bool = False) -> tuple[int, ...]:
        return self._chat.plain(text, opens=opens)

    def plain_parser(self) -> StreamParser:
        return self._chat.plain_parser()

    def constraint(self, form: AnswerForm, prompt: Sequence[int]) -> Constraint:
        return answer_grammar(form, None, None)

    def text(self, ids: Sequence[int]) -> str:
        return self._chat.text(ids)

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return self._chat.pieces(ids)

    def _ids(self, message: Message, *, opens: bool = False) -> tuple[int, ...]:
        if (ids := message.get("ids")) is None:
            return self.plain(message["content"], opens=opens)
        if ids and max(ids) >= self.size:
            raise ConversationError(
                f"there is no token {max(ids)}", remedy=f"send ids from 0 to {self.size - 1}, of this model's tokenizer"
            )
        return tuple(ids)


def text_history(recorder: Recorder, prompt: Message, renderer: Renderer) -> tuple[Message, ...]:
    """The conversation that a prompt continues, and what it adds as the last message.

    A prompt continues the longest recorded stream that it begins with: as ids, or as the text of all that was sent and
    sampled. An answer that ended with an end token is continued by ids only, because its text does not show that token.
    The last message names the turn that was found (`after`): other turns may have a text that only looks the same.
    """
    begins = _begins_by_ids(recorder, prompt["ids"]) if "ids" in prompt else _begins_by_text(recorder, prompt, renderer)
    # `max` takes the first of equals, so that a retry continues the same turn.
    length, number = max(begins, key=itemgetter(0), default=(0, -1))
    before, place = ((), {}) if number < 0 else (recorder.conversation(number), {"after": number})
    if "ids" not in prompt:
        return (*before, {**prompt, "content": prompt["content"][length:], **place})
    ids = prompt["ids"][length:]
    content = renderer.text([one for one in ids if one < renderer.size])
    return (*before, {**prompt, "ids": ids, "content": content, **place})


def _begins_by_ids(recorder: Recorder, ids: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """The length of each recorded stream that the ids begin with, and its turn."""
    for number in _text_turns(recorder):
        stream = recorder.stream(number)
        if ids[: len(stream)] == stream:
            yield len(stream), number


def _begins_by_text(recorder: Recorder, prompt: Message, renderer: Renderer) -> Iterator[tuple[int, int]]:
    whole: dict[int, str | None] = {}
    for number in _text_turns(recorder):
        turn = recorder.turns[number]
        before = "" if turn.parent is None else whole[turn.parent]
        is_open = turn.finish is FinishReason.LENGTH or turn.stop is not None
        added = None if any("ids" in message for message in turn.added) else "".join(m["content"] for m in turn.added)
        whole[number] = None
        if before is not None and added is not None and is_open:
            said = whole[number] = before + added + renderer.text(turn.ids.tolist())
            if prompt["content"].startswith(said):
                yield len(said), number


def _text_turns(recorder: Recorder) -> Iterator[int]:
    texts = set[int]()
    for turn in recorder.turns:
        if turn.parent in texts or (turn.parent is None and turn.added and turn.added[0]["role"] == TEXT):
            texts.add(turn.number)
            yield turn.number
