"""Token batches without a model: random tokens in chains, in float64, with room for extreme ratios."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from loopwright.learn.losses import TokenBatch


@dataclass(frozen=True)
class Token:
    """One token in plain numbers, for references that loop."""

    now: float
    old: float
    sampled: float
    reference: float
    advantage: float
    chain: int


def batch_of(tokens: list[Token], *, requires_grad: bool = False) -> TokenBatch:
    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(token, name) for token in tokens], dtype=torch.float64)

    return TokenBatch(
        logprobs=column("now").requires_grad_(requires_grad),
        old_logprobs=column("old"),
        sampled_logprobs=column("sampled"),
        advantages=column("advantage"),
        sequence=torch.tensor([token.chain for token in tokens]),
        reference_logprobs=column("reference"),
    )


@st.composite
def token_lists(draw: st.DrawFn, move: float = 2.0) -> list[Token]:
    """Chains of several lengths, each with one advantage; ratios up to e^move."""
    tokens = []
    for chain in range(draw(st.integers(1, 4))):
        advantage = draw(st.sampled_from([-2.0, -0.5, 0.0, 0.75, 3.0]))
        for _ in range(draw(st.integers(1, 5))):
            old = draw(st.floats(-8, -0.01))
            moves = [draw(st.floats(-move, move)) for _ in range(3)]
            tokens.append(Token(old + moves[0], old, old + moves[1], old + moves[2], advantage, chain))
    return tokens


def chains_of(tokens: list[Token]) -> list[list[Token]]:
    return [[token for token in tokens if token.chain == chain] for chain in sorted({t.chain for t in tokens})]
