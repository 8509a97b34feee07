"""A call that can be sent to an engine: its prompt, and the chain that it continues."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import orjson

from loopwright.errors import ChainError, ConversationError
from loopwright.ports import Renderer
from loopwright.render.recording.matching import History
from loopwright.types import ChainStart, Message, Tool

LARGE = 1 << 16
"""A number of characters. Encoding a text of this size would block the event loop for too long."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that can be sent to an engine. `prompt` continues the stream of turn `parent`, if there is one. Without a
    parent, `why` is the reason for the new chain."""

    history: History
    tools: tuple[Tool, ...]
    prompt: tuple[int, ...]
    parent: int | None
    shared_messages: int
    shared_tokens: int
    why: ChainStart
    preamble: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """A call whose place in a recorder is known: after turn `parent`, whose `conversation` has the ids `stream`, or in
    a new chain. It holds everything that its prompt needs, so any thread can prepare it."""

    history: History
    tools: tuple[Tool, ...]
    preamble: bool
    why: ChainStart
    parent: int | None = None
    stream: tuple[int, ...] = ()
    conversation: tuple[Message, ...] = ()

    @property
    def is_large(self) -> bool:
        size = len(self.history.begun)
        for message in self.history.messages:
            size += len(message["content"] or "")
            if "reasoning" in message or "tool_calls" in message:
                size += _more(message)
        return size >= LARGE or (bool(self.tools) and len(orjson.dumps(self.tools)) >= LARGE)

    def prepare(self, renderer: Renderer, most: int | None = None) -> Prepared:
        """Encode only what is new (T5). May raise ContextError for a prompt that certainly has more than `most` ids."""
        history, why = self.history, self.why
        if self.parent is not None:
            place = len(self.conversation)
            new = history.messages[place:]
            prompt = renderer.extend(self.stream, self.conversation, new, self.tools, most=most)
            if prompt is not None:
                _check_extends(prompt, self.stream)
                prompt, shared = self._begun(prompt, renderer), len(self.stream)
                return Prepared(history, self.tools, prompt, self.parent, place, shared, why, self.preamble)
            why = ChainStart.TEMPLATE
        prompt = self._begun(renderer.render(history.messages, self.tools, most=most), renderer)
        return Prepared(history, self.tools, prompt, None, 0, 0, why, self.preamble)

    def _begun(self, prompt: tuple[int, ...], renderer: Renderer) -> tuple[int, ...]:
        """The prompt with the beginning of the answer, if the request has one."""
        if not self.history.begun:
            return prompt
        if (beginning := renderer.begin(self.history.begun)) is None:
            raise ConversationError(
                "the model's chat template has no place for the beginning of an answer",
                remedy="end the conversation with a message of the user or of a tool",
            )
        return (*prompt, *beginning)

    async def prepare_beside(self, renderer: Renderer, most: int | None = None) -> Prepared:
        """Like `prepare`, but in a thread if it takes long."""
        if not self.is_large:
            return self.prepare(renderer, most)
        return await asyncio.to_thread(self.prepare, renderer, most)


def _more(message: Message) -> int:
    """What an assistant's message holds beside its content, in characters."""
    asked = sum(len(call["arguments"]) for call in message.get("tool_calls") or ())
    return asked + len(message.get("reasoning") or "")


def _check_extends(prompt: tuple[int, ...], stream: tuple[int, ...]) -> None:
    if prompt[: len(stream)] != stream:
        raise ChainError(
            "the renderer changed a stream that it was to extend",
            remedy="report this with the model's name: training on such a chain would be wrong",
        )
