"""A committed model call as it is stored: only what it adds to the call that it continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loopwright.types import ChainStart, FinishReason, Message, Parsed, Tool, ToolCall
from loopwright.types.spans import Spans
from loopwright.types.tokens import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """One turn of a session. The engine's prompt was the parent's stream followed by `context`; it sampled `ids`.

    `start` says why the turn began a chain; None means that it continues its parent's chain. `added` are the messages
    between the parent's reply and this reply. `preamble`: the first message of the conversation was the instructions of
    this request only. `draws` is how many samples the session had requested by then, including failed ones. `begun` is
    the beginning of the reply, if the agent wrote one: its tokens are context. `constrained` are the spans of `ids`
    that do not train. `alternatives` are the likeliest tokens in the places of `ids`, packed, if they were
    asked for.
    """

    number: int
    parent: int | None
    start: ChainStart | None
    added: tuple[Message, ...]
    reply: Message
    tools: tuple[Tool, ...]
    context: IntArray
    ids: IntArray
    logprobs: FloatArray
    versions: IntArray
    finish: FinishReason
    answer: str
    created: int
    stop: str | None = None
    preamble: bool = False
    wishes: Mapping[str, Any] = field(default_factory=dict)
    draws: int = 0
    begun: str = ""
    constrained: Spans = ()
    alternatives: bytes = b""

    @property
    def omitted(self) -> list[str]:
        """The kinds of content in the added messages that the model could not be shown."""
        return [kind for message in self.added if "omitted" in message for kind in message["omitted"]]

    @property
    def parsed(self) -> Parsed:
        """What the model wrote."""
        calls = (ToolCall(call["name"], call["arguments"], call["id"]) for call in self.reply.get("tool_calls", ()))
        return Parsed(self.reply["content"].removeprefix(self.begun), self.reply.get("reasoning", ""), tuple(calls))
