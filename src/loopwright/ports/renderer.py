"""Messages to token ids and back.

A conversation is canonical, whatever dialect it came in: messages with `role` (system, user, assistant or tool) and
`content` (text). An assistant's message may have `reasoning` (text) and `tool_calls`, each a mapping of `id`, `name`
and `arguments` (JSON text); a tool's message has `tool_call_id` and `name`. `tools` are mappings of `name`,
`description` and `parameters` (a JSON schema). A renderer sees nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loopwright.types import Delta, Message, Parsed, Tool


class StreamParser(Protocol):
    """Reads one completion as it is sampled. However its ids are cut into pieces, the deltas add up to the same.

    What a delta says is final: it never holds half a character or half a marker, nor text that turns out to belong to a
    tool call.
    """

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        """What is certain now and was not before."""
        ...

    def finish(self) -> list[Delta]:
        """What was held back. A tool call that never became one is content."""
        ...


class Renderer(Protocol):
    """Knows one tokenizer and how its model was taught to write turns, thoughts and tool calls."""

    @property
    def name(self) -> str:
        """What kind of renderer it is, for people."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokens that end an assistant's turn."""
        ...

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, most: int | None = None
    ) -> tuple[int, ...]:
        """The whole conversation, ready for the assistant's next turn.

        Encoding takes long. A conversation that is sure to have more than `most` ids may be refused without it, with a
        ContextError.
        """
        ...

    def extend(
        self,
        stream: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        most: int | None = None,
    ) -> tuple[int, ...] | None:
        """`stream` (the prompt and the sampled ids of `history`) continued by `new`, ready for the next turn.

        Nothing of `stream` is tokenised again (T5). None when the template would have rewritten the history: the
        caller then renders afresh and starts a new chain. `most` is as in `render`.
        """
        ...

    def answered(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """A written answer, the last of `messages`, as a model would have sampled it: the prompt before it, and its
        tokens with their end. None when the earlier messages are written differently once they are answered.
        """
        ...

    def parse(
        self, ids: Sequence[int], tools: Sequence[Tool] | None = None, prompt: Sequence[int] | None = None
    ) -> Parsed:
        """A whole completion as content, reasoning and tool calls. Nothing that was written gets lost: a malformed tool
        call is content.

        `tools` are those that the model was offered. Without any (`()`), nothing is a call; with None, it is not known,
        and what looks like a call is one. `prompt` are the ids that it was sampled after: some models begin to think in
        there. With None, it is taken to end as rendered prompts usually do.
        """
        ...

    def parser(self, tools: Sequence[Tool] | None = None, prompt: Sequence[int] | None = None) -> StreamParser:
        """A fresh parser for one completion; its deltas add up to what `parse` says."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Sampled ids as the text that an agent sees: without special tokens."""
        ...

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Each id as a human would read it, for showing trajectories token by token."""
        ...
