"""Measures what a naive re-tokenisation makes of a recorded conversation: it decodes the replies, reads them as
messages and renders these again. Code without a record of the tokens has to do this. Loopwright never trains on the
result (T5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopwright.core.drift import Drift, drift_between, total
from loopwright.errors import ConversationError
from loopwright.ports import Renderer
from loopwright.types import EpisodeDrift, Message, TokenDiff, Tool


def chain_drift(
    stream: Sequence[int],
    messages: Sequence[Message],
    renderer: Renderer,
    tools: Sequence[Tool] = (),
    *,
    first_sampled: int,
    first_reply: int,
    begun: str = "",
) -> Drift:
    """Compare a chain with its conversation rendered again.

    `stream` are the chain's ids up to its latest reply, which is the last of `messages`. `first_sampled` is the
    position of the first token that was sampled for this chain, and `first_reply` is the number of that token's
    message, which began with the text `begun`. The tokens before were rendered once, and are the same in both.
    """
    recorded = tuple(stream[first_sampled:])
    try:
        prompt = (*renderer.render(messages[:first_reply], tools), *((begun and renderer.begin(begun)) or ()))
        whole = _rendered(messages, renderer, tools)
    except ConversationError:
        # A model may write what its own template refuses, such as two calls at once. Then all tokens would be lost.
        return drift_between(recorded, ())
    if whole[: len(prompt)] != prompt:
        # The template now writes the first prompt differently, so the positions of all later tokens have changed.
        return drift_between((*stream[:first_sampled], *recorded), whole)
    return drift_between(recorded, whole[len(prompt) :])


def _rendered(messages: Sequence[Message], renderer: Renderer, tools: Sequence[Tool]) -> tuple[int, ...]:
    """The conversation, rendered with its last reply as if it had just been sampled."""
    written = renderer.answered(messages, tools)
    if written is not None:
        return (*written[0], *written[1])
    return renderer.render(messages, tools)


def readable(drift: Drift, renderer: Renderer) -> EpisodeDrift:
    """The drift with its first mismatch as texts of tokens, for people."""
    first = drift.first
    diff = None
    if first is not None:
        diff = TokenDiff(first.place, *(renderer.pieces(ids) for ids in (first.before, first.recorded, first.naive)))
    return EpisodeDrift(drift.tokens, drift.lost, drift.invented, diff)


@dataclass(frozen=True, slots=True)
class ConversationDrift:
    """A conversation as a model would have sampled it: its chains, the reasons why all but the first began, and their
    drift. Replies that the renderer cannot write (`unspelled`) are in no chain."""

    chains: int
    forks: int
    drift: Drift
    unspelled: int = 0


def conversation_drift(
    messages: Sequence[Message], renderer: Renderer, tools: Sequence[Tool] = ()
) -> ConversationDrift:
    """Go through a recorded conversation turn by turn, extending the stream where the template allows it.

    A reply's tokens are its `ids`, if the recording has them. Otherwise they are assumed to be as the template would
    write them; then only the template can cause drift.
    """
    chains: list[_Chain] = []
    unspelled = 0
    live: _Chain | None = None
    for place in [n for n, message in enumerate(messages) if n and message["role"] == "assistant"]:
        sampled = _sampled(messages[: place + 1], renderer, tools)
        if sampled is None:
            unspelled, live = unspelled + 1, None
            continue
        prompt = live and renderer.extend(live.stream, live.messages, messages[len(live.messages) : place], tools)
        fresh = prompt or renderer.render(messages[:place], tools)
        first_sampled, first_reply = len(fresh), place
        if live and prompt:
            first_sampled, first_reply = live.first_sampled, live.first_reply
            chains.remove(live)
        live = _Chain((*fresh, *sampled), messages[: place + 1], first_sampled, first_reply)
        chains.append(live)
    drifts = [one.drift(renderer, tools) for one in chains]
    return ConversationDrift(len(chains), max(0, len(chains) - 1), total(drifts), unspelled)


@dataclass(frozen=True, slots=True)
class _Chain:
    stream: tuple[int, ...]
    messages: Sequence[Message]
    first_sampled: int
    first_reply: int

    def drift(self, renderer: Renderer, tools: Sequence[Tool]) -> Drift:
        sampled, reply = self.first_sampled, self.first_reply
        return chain_drift(self.stream, self.messages, renderer, tools, first_sampled=sampled, first_reply=reply)


def _sampled(messages: Sequence[Message], renderer: Renderer, tools: Sequence[Tool]) -> tuple[int, ...] | None:
    if "ids" in messages[-1]:
        return tuple(messages[-1]["ids"])
    written = renderer.answered(messages, tools)
    return None if written is None else written[1]
