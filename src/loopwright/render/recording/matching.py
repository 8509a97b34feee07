"""Finds the recorded turn that a history continues or, if there is none, the reason.

A history is looked up by the digests of its prefixes. So a request costs time in proportion to its own length, no
matter how much the session has recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loopwright.render.recording.fingerprint import text_digest
from loopwright.types import ChainStart, Message

SHORTEST_SUMMARY = 24
"""Shorter texts than this may occur in messages by chance."""


@dataclass(frozen=True, slots=True)
class History:
    """A request's messages, with the digests of their prefixes and of its tools. `begun` is the beginning of the
    answer, if the request has one."""

    messages: tuple[Message, ...]
    digests: tuple[bytes, ...]
    tools: bytes
    begun: str = ""

    @property
    def digest(self) -> bytes:
        return self.digests[-1]

    @property
    def question(self) -> bytes:
        """The same for all who ask the same."""
        question = self.digests[-1] + self.tools
        return question + text_digest(self.begun) if self.begun else question


@dataclass(slots=True)
class Index:
    """What a session has recorded, by digest. A digest covers the messages; tools are compared separately."""

    replies: dict[bytes, list[int]] = field(default_factory=dict)
    """Turns by the digest of the history that ends with their reply."""
    prompts: dict[bytes, list[int]] = field(default_factory=dict)
    """Turns by the digest of the history that they answered."""
    seen: dict[bytes, int] = field(default_factory=dict)
    """The first turn with each prefix of a recorded history."""
    tools: list[bytes] = field(default_factory=list)
    """The digest of each turn's tools."""

    def add(self, number: int, tools: bytes, prompt: bytes, reply: bytes, prefixes: Sequence[bytes]) -> None:
        self.replies.setdefault(reply, []).append(number)
        self.prompts.setdefault(prompt, []).append(number)
        for digest in (*prefixes, reply):
            self.seen.setdefault(digest, number)
        self.tools.append(tools)

    def continued(self, history: History) -> list[tuple[int, list[int]]]:
        """The places where the history continues recorded turns with the same tools, the latest place first."""
        places = []
        for place in range(len(history.digests) - 1, -1, -1):
            turns = [one for one in self.replies.get(history.digests[place], ()) if self.tools[one] == history.tools]
            if turns:
                places.append((place, turns))
        return places

    def asked(self, history: History) -> list[int]:
        """The turns that answered exactly this history."""
        return [one for one in self.prompts.get(history.digest, ()) if self.tools[one] == history.tools]


def why_new(history: History, index: Index, replies: Sequence[str]) -> ChainStart:
    """Why a history continues no recorded turn (T6). `replies` are earlier texts of the model."""
    if not index.tools:
        return ChainStart.FIRST
    if any(digest in index.replies and not _same_tools(history, index, digest) for digest in history.digests):
        return ChainStart.TOOLS
    shared = next((n for n, digest in enumerate(history.digests) if digest not in index.seen), len(history.digests))
    if quoted(history.messages[shared:], replies) is not None:
        return ChainStart.COMPACTED
    if all(message["role"] == "system" for message in history.messages[:shared]):
        return ChainStart.SEPARATE
    if shared == len(history.digests):
        return ChainStart.BRANCH
    went_back = history.digests[shared - 1] in index.prompts and history.messages[shared]["role"] != "assistant"
    return ChainStart.BRANCH if went_back else ChainStart.REWRITTEN


def _same_tools(history: History, index: Index, digest: bytes) -> bool:
    return any(index.tools[one] == history.tools for one in index.replies[digest])


def quoted(messages: Sequence[Message], replies: Sequence[str]) -> int | None:
    """The number of the reply that another message quotes, the latest one if there are several. A compacted history
    begins with such a quote."""
    others = [message["content"] for message in messages if message["role"] != "assistant"]
    for place in range(len(replies) - 1, -1, -1):
        reply = replies[place]
        if len(reply) >= SHORTEST_SUMMARY:
            # Search for the beginning first: if it is not there, the search ends sooner.
            beginning = reply[:SHORTEST_SUMMARY]
            for text in others:
                if beginning in text and reply in text:
                    return place
    return None
