"""Which recorded turn does a history go on from, and if from none, why not?

A history is looked up by the digests of its prefixes, so a request costs time in proportion to its own length, however
much the session has recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loopwright.types import ChainStart, Message

SHORTEST_SUMMARY = 24
"""Texts shorter than this occur in messages by chance."""


@dataclass(frozen=True, slots=True)
class History:
    """A request's messages, with the digests of their prefixes and of its tools."""

    messages: tuple[Message, ...]
    digests: tuple[bytes, ...]
    tools: bytes

    @property
    def digest(self) -> bytes:
        return self.digests[-1]


@dataclass(slots=True)
class Index:
    """What a session has recorded, by digest. A digest is that of the messages; tools are compared apart."""

    replies: dict[bytes, list[int]] = field(default_factory=dict)
    """Turns by the history that ends with their reply."""
    prompts: dict[bytes, list[int]] = field(default_factory=dict)
    """Turns by the history that they answered."""
    seen: set[bytes] = field(default_factory=set)
    """Every prefix of every recorded history."""
    tools: list[bytes] = field(default_factory=list)
    """The digest of each turn's tools."""

    def add(self, number: int, tools: bytes, prompt: bytes, reply: bytes, prefixes: Sequence[bytes]) -> None:
        self.replies.setdefault(reply, []).append(number)
        self.prompts.setdefault(prompt, []).append(number)
        self.seen.update(prefixes, (reply,))
        self.tools.append(tools)

    def continued(self, history: History) -> list[tuple[int, list[int]]]:
        """Places in the history where it goes on from recorded turns with the same tools, latest place first."""
        places = []
        for place in range(len(history.digests) - 1, -1, -1):
            turns = [one for one in self.replies.get(history.digests[place], ()) if self.tools[one] == history.tools]
            if turns:
                places.append((place, turns))
        return places

    def asked(self, history: History) -> list[int]:
        """Turns that answered exactly this."""
        return [one for one in self.prompts.get(history.digest, ()) if self.tools[one] == history.tools]


def why_new(history: History, index: Index, replies: Callable[[], Sequence[str]]) -> ChainStart:
    """Why a history goes on from no recorded turn (T6). `replies` are texts that the model said before."""
    if not index.tools:
        return ChainStart.FIRST
    if any(digest in index.replies and not _same_tools(history, index, digest) for digest in history.digests):
        return ChainStart.TOOLS
    shared = next((n for n, digest in enumerate(history.digests) if digest not in index.seen), len(history.digests))
    if _holds_summary(history.messages[shared:], replies()):
        return ChainStart.COMPACTED
    if all(message["role"] == "system" for message in history.messages[:shared]):
        return ChainStart.SEPARATE
    if shared == len(history.digests):
        return ChainStart.BRANCH
    went_back = history.digests[shared - 1] in index.prompts and history.messages[shared]["role"] != "assistant"
    return ChainStart.BRANCH if went_back else ChainStart.REWRITTEN


def _same_tools(history: History, index: Index, digest: bytes) -> bool:
    return any(index.tools[one] == history.tools for one in index.replies[digest])


def _holds_summary(messages: Sequence[Message], replies: Sequence[str]) -> bool:
    """Whether somebody else's message quotes what the model said: so a compacted history begins."""
    summaries = [reply for reply in replies if len(reply) >= SHORTEST_SUMMARY]
    return any(summary in m["content"] for m in messages if m["role"] != "assistant" for summary in summaries)
