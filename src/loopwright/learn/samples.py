"""From groups to what the loss needs: chains with their advantage and token weight, and packed tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from loopwright.core.advantage import Advantage
from loopwright.core.packing import Packed
from loopwright.core.weighting import token_weights
from loopwright.errors import ChainError
from loopwright.learn.attention import packed_positions
from loopwright.types import Aggregate, Episode, Group, TokenChain


@dataclass(frozen=True, slots=True)
class Sample:
    """One chain to train on. The advantage is its rollout's; the weight is that of each of its sampled tokens."""

    chain: TokenChain
    group: int
    advantage: float
    weight: float

    def __post_init__(self) -> None:
        if self.chain.mask[0]:
            raise ChainError(
                "a chain begins with a sampled token, which no logits predict",
                remedy="give the engine at least one prompt token",
            )


def samples_of(groups: Sequence[Group], advantage: Advantage, aggregate: Aggregate) -> list[Sample]:
    """Every chain of a mini-batch that has something to teach.

    Chains with advantage 0 are left out: their gradient is exactly 0. They still count in the token weights.
    """
    rollouts = [(g, rollout, a) for g, group in enumerate(groups) for rollout, a in _members(group, advantage)]
    sampled = [rollout.sampled_tokens for _, rollout, _ in rollouts]
    weights = token_weights(sampled, aggregate)
    return [
        Sample(chain, g, a, weight)
        for (g, episode, a), weight in zip(rollouts, weights, strict=True)
        for chain in episode.chains
        if a != 0 and chain.sampled
    ]


def _members(group: Group, advantage: Advantage) -> list[tuple[Episode, float]]:
    pairs = zip(group.rollouts, advantage(group.rewards), strict=True)
    return [(rollout.episode, a) for rollout, a in pairs if rollout.episode is not None]


@dataclass(frozen=True, slots=True)
class Tensors:
    """A micro-batch: one packed row of tokens, and for each trained token where its logits come from."""

    ids: torch.Tensor
    positions: torch.Tensor
    logit_positions: torch.Tensor
    """Packed positions whose logits are computed, each once."""
    logit_of_target: torch.Tensor
    """Which of them predicts each target: siblings share the last prompt token."""
    targets: torch.Tensor
    sampled_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor


def tensors_of(rows: Sequence[Packed], samples: Sequence[Sample], device: torch.device) -> Tensors:
    """Lay the rows of one micro-batch out as one packed row."""
    ids: list[np.ndarray] = []
    positions: list[int] = []
    before: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    logprobs: list[np.ndarray] = []
    scale: list[tuple[int, float, float]] = []
    start = 0
    for row in rows:
        ids.append(samples[row.chains[0]].chain.ids[: row.prefix])
        positions += packed_positions(row)[1]
        rest_start = start + row.prefix
        for index, rest in zip(row.chains, row.rests, strict=True):
            sample = samples[index]
            chain = sample.chain
            trained = chain.mask.nonzero()[0]
            ids.append(chain.ids[row.prefix : -1])
            # The token before a target is in the prefix, or in this chain's own rest.
            predecessor = trained - 1
            before.append(np.where(predecessor < row.prefix, start, rest_start - row.prefix) + predecessor)
            targets.append(chain.ids[trained])
            logprobs.append(chain.logprobs[trained])
            scale.append((len(trained), sample.advantage, sample.weight))
            rest_start += rest
        start += row.tokens
    counts = [n for n, _, _ in scale]
    needed, inverse = np.unique(np.concatenate(before), return_inverse=True)
    return Tensors(
        ids=torch.from_numpy(np.concatenate(ids)).long().to(device),
        positions=torch.tensor(positions, device=device),
        logit_positions=torch.from_numpy(needed).to(device),
        logit_of_target=torch.from_numpy(inverse).to(device),
        targets=torch.from_numpy(np.concatenate(targets)).long().to(device),
        sampled_logprobs=torch.from_numpy(np.concatenate(logprobs)).to(device),
        advantages=torch.tensor(np.repeat([a for _, a, _ in scale], counts), dtype=torch.float32, device=device),
        weights=torch.tensor(np.repeat([w for _, _, w in scale], counts), dtype=torch.float32, device=device),
    )
