"""Turns into token chains (T1, T6, T7), and back.

A turn whose prompt extends a chain grows that chain by the engine's own ids; anything else starts a new one. So a
chain is always one context that an engine really saw, and each sampled token has mask 1 in exactly one chain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from loopwright.types import ChainStart, FinishReason, TokenChain, Turn


@dataclass(slots=True)
class _Growing:
    start: ChainStart
    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def add_context(self, ids: Iterable[int]) -> None:
        for token in ids:
            self.ids.append(token)
            self.mask.append(False)
            self.logprobs.append(0.0)
            self.versions.append(-1)

    def add_sampled(self, turn: Turn) -> None:
        self.ids.extend(turn.ids)
        self.mask.extend([True] * len(turn.ids))
        self.logprobs.extend(turn.logprobs)
        self.versions.extend(turn.versions)

    def freeze(self) -> TokenChain:
        return TokenChain(self.ids, self.mask, self.logprobs, self.versions, self.start)  # type: ignore[arg-type]


def chains_of(turns: Iterable[Turn]) -> tuple[TokenChain, ...]:
    """Fold a rollout's turns, in the order they were sampled, into its chains."""
    chains: list[_Growing] = []
    for turn in turns:
        prompt = list(turn.prompt_ids)
        fitting = [chain for chain in chains if chain.ids == prompt[: len(chain.ids)]]
        if fitting:
            chain = max(fitting, key=lambda chain: len(chain.ids))
            chain.add_context(prompt[len(chain.ids) :])
        else:
            branches = any(prompt == chain.ids[: len(prompt)] for chain in chains)
            start = ChainStart.BRANCH if branches else ChainStart.REWRITTEN if chains else ChainStart.FIRST
            chain = _Growing(start)
            chain.add_context(prompt)
            chains.append(chain)
        chain.add_sampled(turn)
    return tuple(chain.freeze() for chain in chains)


def turns_of(chain: TokenChain) -> tuple[Turn, ...]:
    """The turns behind a chain: each run of sampled tokens, after all that came before it.

    A chain does not say why they ended; each is given as one that was cut short.
    """
    edges = np.flatnonzero(np.diff(chain.mask, prepend=False, append=False)).tolist()
    return tuple(
        Turn(
            tuple(chain.ids[:begin].tolist()),
            tuple(chain.ids[begin:end].tolist()),
            tuple(chain.logprobs[begin:end].tolist()),
            tuple(chain.versions[begin:end].tolist()),
            FinishReason.ABORT,
        )
        for begin, end in zip(edges[::2], edges[1::2], strict=True)
    )
