"""What is known of a chain besides its tokens. The user's function that chooses the trained chains sees this."""

from __future__ import annotations

from dataclasses import dataclass

from loopwright.types.parsed import Tool
from loopwright.types.task import Message
from loopwright.types.tokens import ChainStart


@dataclass(frozen=True, slots=True)
class RecordedChain:
    """A chain of a rollout: why it began, and the conversation up to its last reply, with the tools offered then.

    Chains with the same `conversation` grew from one another: the agent went back, compacted the history or changed the
    tools. `is_main` is true if the chain belongs to the agent's main conversation, and not to a sub-agent or to a
    separate question. `turns` and `sampled_tokens` count this chain only.
    """

    number: int
    start: ChainStart
    is_main: bool
    conversation: int
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    turns: int
    sampled_tokens: int
