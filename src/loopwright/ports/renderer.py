"""Messages to token ids and back.

A conversation is canonical, whatever dialect it came in: messages with `role` (system, user, assistant or tool) and
`content` (text). An assistant's message may have `reasoning` (text) and `tool_calls`, each a mapping of `id`, `name`
and `arguments` (JSON text); a tool's message has `tool_call_id` and `name`. `tools` are mappings of `name`,
`description` and `parameters` (a JSON schema). A renderer sees nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loopwright.types import AnswerForm, Constraint, Delta, Message, Parsed, Tool


class StreamParser(Protocol):
    """Reads one completion while it is sampled. The deltas add up to the same, no matter how the ids are split.

    A delta is final: it never holds half a character, half a marker, or text that later turns out to belong to a tool
    call.
    """

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        """The deltas that have become certain with these ids."""
        ...

    def finish(self) -> list[Delta]:
        """The deltas that were held back until the end. An unfinished tool call becomes content."""
        ...


class Renderer(Protocol):
    """Knows one tokenizer, and how its model was trained to write turns, thoughts and tool calls."""

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

        Encoding is slow. A conversation that certainly has more than `most` ids may be refused before it is encoded,
        with a ContextError.
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
        """The tokens of a written answer (the last of `messages`) as a model would have sampled it: the prompt before
        it, and its own tokens including the end of the turn. None if the template writes the earlier messages
        differently once an answer follows.
        """
        ...

    def parse(
        self, ids: Sequence[int], tools: Sequence[Tool] | None = None, prompt: Sequence[int] | None = None
    ) -> Parsed:
        """Split a whole completion into content, reasoning and tool calls. No text is lost: a malformed tool call is
        content.

        `tools` are those that the model was offered. With none (`()`), nothing is a call. With None it is unknown, and
        text that looks like a call is one. `prompt` are the ids before the completion, because some models begin to
        think in the prompt. With None, the prompt is assumed to end as rendered prompts usually do.
        """
        ...

    def parser(self, tools: Sequence[Tool] | None = None, prompt: Sequence[int] | None = None) -> StreamParser:
        """A fresh parser for one completion; its deltas add up to what `parse` says."""
        ...

    def constraint(self, form: AnswerForm, prompt: Sequence[int]) -> Constraint:
        """The grammar of an answer of this form after `prompt`. A thought may come first where the model has them; it
        is free. Raises ConstraintError if no grammar of this model's answers is known."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Sampled ids as the text that an agent sees: without special tokens."""
        ...

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The text of each id, for showing trajectories token by token."""
        ...
