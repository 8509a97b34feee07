"""From groups to what a micro-batch needs: chains with their advantage and token weight, and packed tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from loopwright.core.advantage import Scores
from loopwright.core.packing import Packed
from loopwright.errors import ChainError
from loopwright.learn.layout import Layout
from loopwright.types import Episode, Group, Rollout, RolloutKey, TokenChain
from loopwright.types.tokens import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class Sample:
    """One chain to train on. `advantage` is that of its rollout; `weight` is the weight of each of its sampled tokens.

    `rollout` and `index` say which chain it is: the rollout's key, and the chain's place in its episode.
    """

    chain: TokenChain
    group: int
    advantage: float
    weight: float
    rollout: RolloutKey
    index: int

    def __post_init__(self) -> None:
        if self.chain.mask[0]:
            raise ChainError(
                "a chain begins with a sampled token, which no logits predict",
                remedy="give the engine at least one prompt token",
            )


def scores_of(group: Group) -> Scores:
    """The values from which an advantage is computed."""
    episodes = [rollout.episode for rollout in group.rollouts]
    return Scores(group.rewards, tuple(episode.trained_tokens if episode else 0 for episode in episodes))


@dataclass(frozen=True, slots=True)
class JudgedRollout:
    """A rollout that has an episode, with its advantage and the weight of each of its sampled tokens."""

    rollout: Rollout
    episode: Episode
    group: int
    advantage: float
    weight: float


def judged_rollouts(
    groups: Sequence[tuple[Group, Sequence[float]]], weigh: Callable[[Sequence[int]], Sequence[float]]
) -> list[JudgedRollout]:
    """The rollouts of a mini-batch, given its groups with their members' advantages. `weigh` computes the token weights
    from the numbers of sampled tokens."""
    rollouts = [
        (number, rollout, rollout.episode, advantage)
        for number, (group, advantages) in enumerate(groups)
        for rollout, advantage in zip(group.rollouts, advantages, strict=True)
        if rollout.episode is not None
    ]
    weights = weigh([episode.trained_tokens for _, _, episode, _ in rollouts])
    return [
        JudgedRollout(rollout, episode, number, advantage, weight)
        for (number, rollout, episode, advantage), weight in zip(rollouts, weights, strict=True)
    ]


def samples_of(rollouts: Sequence[JudgedRollout], *, idle: bool) -> list[Sample]:
    """The chains to train on. Those with advantage 0 are left out unless `idle`, because the gradient of the built-in
    policy losses is exactly 0 for them. They still count in the token weights."""
    return [
        Sample(chain, one.group, one.advantage, one.weight, one.rollout.key, index)
        for one in rollouts
        for index, chain in enumerate(one.episode.chains)
        if chain.trained and chain.sampled and (idle or one.advantage != 0)
    ]


class Targets(Protocol):
    """Token ids, and which of them must be predicted: a sampled chain, or an SFT example."""

    @property
    def ids(self) -> IntArray: ...
    @property
    def mask(self) -> BoolArray: ...


@dataclass(frozen=True, slots=True)
class Tensors:
    """A micro-batch for the forward pass: one packed row of tokens, and for each target the position of its logits."""

    ids: torch.Tensor
    positions: torch.Tensor
    logit_positions: torch.Tensor
    """The packed positions for which logits are computed, each once."""
    logit_of_target: torch.Tensor
    """For each target, the index of the position that predicts it. Siblings share the last token of the prompt."""
    targets: torch.Tensor


def tensors_of(rows: Sequence[Packed], chains: Sequence[Targets], device: torch.device) -> Tensors:
    """Lay out the rows of one micro-batch. Targets are ordered chain by chain, in the order of the rows."""
    size, starts = sum(row.tokens for row in rows), Layout(rows).starts()
    ids, positions = np.empty(size, np.int64), np.empty(size, np.int64)
    before: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    for row, (start, rest_start) in zip(rows, starts, strict=True):
        ids[start : start + row.prefix] = chains[row.chains[0]].ids[: row.prefix]
        positions[start : start + row.prefix] = np.arange(row.prefix)
        for index, rest in zip(row.chains, row.rests, strict=True):
            chain = chains[index]
            trained = chain.mask.nonzero()[0]
            ids[rest_start : rest_start + rest] = chain.ids[row.prefix : -1]
            positions[rest_start : rest_start + rest] = np.arange(row.prefix, row.prefix + rest)
            # The token before a target is in the prefix, or in the rest of the same chain.
            predecessor = trained - 1
            before.append(np.where(predecessor < row.prefix, start, rest_start - row.prefix) + predecessor)
            targets.append(chain.ids[trained])
            rest_start += rest
    needed, inverse = np.unique(np.concatenate(before), return_inverse=True)
    return Tensors(
        ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        logit_positions=torch.from_numpy(needed).to(device),
        logit_of_target=torch.from_numpy(inverse).to(device),
        targets=torch.from_numpy(np.concatenate(targets)).long().to(device),
    )


@dataclass(frozen=True, slots=True)
class Credit:
    """What is known of each target of a micro-batch besides its logits, in the order of the targets in `Tensors`."""

    sampled_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    sequence: torch.Tensor
    """The number of its chain within the micro-batch."""
    versions: torch.Tensor


def credit_of(rows: Sequence[Packed], samples: Sequence[Sample], device: torch.device) -> Credit:
    chosen = [samples[index] for row in rows for index in row.chains]
    counts = [sample.chain.sampled for sample in chosen]
    logprobs = np.concatenate([sample.chain.logprobs[sample.chain.mask] for sample in chosen])
    versions = np.concatenate([sample.chain.versions[sample.chain.mask] for sample in chosen])

    def repeated(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(np.repeat(values, counts), dtype=dtype, device=device)

    return Credit(
        sampled_logprobs=torch.from_numpy(logprobs).to(device),
        advantages=repeated([sample.advantage for sample in chosen], torch.float32),
        weights=repeated([sample.weight for sample in chosen], torch.float32),
        sequence=repeated(range(len(chosen)), torch.long),
        versions=torch.from_numpy(versions).to(device),
    )
