"""What a naive re-tokenisation makes of a recorded conversation: decode the replies, read them as messages, and render
those again. It is what one does without a record of the tokens, and what this code base never trains on (T5)."""

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
) -> Drift:
    """Compare a chain with its conversation rendered anew.

    `stream` are the chain's ids up to its latest reply, with which `messages` end. `first_sampled` is where the first
    token stands that was sampled for this chain, and `first_reply` the number of the message that it belongs to. What
    stands before was rendered once, and is the same in both.
    """
    recorded = tuple(stream[first_sampled:])
    try:
        prompt = renderer.render(messages[:first_reply], tools)
        whole = _rendered(messages, renderer, tools)
    except ConversationError:
        # A model may say what its own template refuses to write, such as two calls at once: all of it would be lost.
        return drift_between(recorded, ())
    if whole[: len(prompt)] != prompt:
        # The template writes the first prompt differently by now: nothing after it is where it was.
        return drift_between((*stream[:first_sampled], *recorded), whole)
    return drift_between(recorded, whole[len(prompt) :])


def _rendered(messages: Sequence[Message], renderer: Renderer, tools: Sequence[Tool]) -> tuple[int, ...]:
    """The conversation with its last reply as if it had just been sampled."""
    written = renderer.answered(messages, tools)
    if written is not None:
        return (*written[0], *written[1])
    return renderer.render(messages, tools)


def readable(drift: Drift, renderer: Renderer) -> EpisodeDrift:
    """The drift with its first mismatch as people read it: in the texts of tokens."""
    first = drift.first
    diff = None
    if first is not None:
        diff = TokenDiff(first.place, *(renderer.pieces(ids) for ids in (first.before, first.recorded, first.naive)))
    return EpisodeDrift(drift.tokens, drift.lost, drift.invented, diff)


@dataclass(frozen=True, slots=True)
class ConversationDrift:
    """A conversation as a model would have lived it: its chains, why all but the first began, and their drift. Replies
    that the renderer cannot spell (`unspelled`) are in none."""

    chains: int
    forks: int
    drift: Drift
    unspelled: int = 0


def conversation_drift(
    messages: Sequence[Message], renderer: Renderer, tools: Sequence[Tool] = ()
) -> ConversationDrift:
    """Go through a recorded conversation turn by turn, extending the stream where the template allows it.

    A reply's tokens are its `ids`, if the recording has them; else they are taken to be as the template would write
    them, and what drifts is then due to the template alone.
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
        begin = {"first_sampled": self.first_sampled, "first_reply": self.first_reply}
        return chain_drift(self.stream, self.messages, renderer, tools, **begin)


def _sampled(messages: Sequence[Message], renderer: Renderer, tools: Sequence[Tool]) -> tuple[int, ...] | None:
    if "ids" in messages[-1]:
        return tuple(messages[-1]["ids"])
    written = renderer.answered(messages, tools)
    return None if written is None else written[1]
