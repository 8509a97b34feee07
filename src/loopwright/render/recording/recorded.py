"""A committed model call, as it is kept: what it adds to the call that it continues, and nothing twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loopwright.types import ChainStart, FinishReason, Message, Parsed, Tool, ToolCall
from loopwright.types.tokens import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """One turn of a session. The engine's prompt was the parent's stream and then `context`; it sampled `ids`.

    `start` says why the turn began a chain; None: it goes on with that of its parent. `added` are the messages between
    the parent's reply and this one's. `preamble`: the first message of the conversation was the instructions of this
    request alone. `draws` is how many samples the session had asked for by then, those that failed too.
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

    @property
    def omitted(self) -> list[str]:
        """The kinds of what the model could not be shown in the messages that were added."""
        return [kind for message in self.added if "omitted" in message for kind in message["omitted"]]

    @property
    def parsed(self) -> Parsed:
        calls = (ToolCall(call["name"], call["arguments"], call["id"]) for call in self.reply.get("tool_calls", ()))
        return Parsed(self.reply["content"], self.reply.get("reasoning", ""), tuple(calls))
