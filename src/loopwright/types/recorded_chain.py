"""What there is to say of a chain besides its tokens, for whoever decides whether it is trained."""

from __future__ import annotations

from dataclasses import dataclass

from loopwright.types.parsed import Tool
from loopwright.types.task import Message
from loopwright.types.tokens import ChainStart


@dataclass(frozen=True, slots=True)
class RecordedChain:
    """A chain of a rollout: why it began, and the conversation up to its last reply with the tools it had then.

    Chains of one `conversation` grew from one another: by going back, by compaction, by other tools. `is_main`: it
    belongs to the conversation that is the agent's work, and not to a sub-agent or a question beside it. `turns` and
    `sampled_tokens` are the chain's own.
    """

    number: int
    start: ChainStart
    is_main: bool
    conversation: int
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    turns: int
    sampled_tokens: int
