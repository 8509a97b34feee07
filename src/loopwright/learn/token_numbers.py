"""Numbers of each trained token, taken off the device once per micro-batch and kept chain by chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from loopwright.learn.plan import MiniBatch, Rows
from loopwright.types import RolloutKey, TrainedChain, TrainedRollout

TokenNumbers = Mapping[RolloutKey, Sequence[TrainedChain]]


def trained_chains(
    batch: MiniBatch, rows: Rows, old_logprobs: torch.Tensor, losses: torch.Tensor
) -> Iterator[tuple[RolloutKey, TrainedChain]]:
    """The chains of a micro-batch, whose tokens' numbers are in the order of its targets."""
    numbers = torch.stack((old_logprobs.detach(), losses.detach())).float().cpu().numpy()
    start = 0
    for index in (index for row in rows for index in row.chains):
        sample = batch.samples[index]
        old, loss = numbers[:, start : start + sample.chain.sampled]
        yield sample.rollout, TrainedChain(sample.index, sample.chain.mask.nonzero()[0].astype(np.int32), old, loss)
        start += sample.chain.sampled


def with_chains(rollouts: Sequence[TrainedRollout], numbers: TokenNumbers) -> tuple[TrainedRollout, ...]:
    """The rollouts with the chains that were computed of them."""
    return tuple(
        TrainedRollout(
            one.key,
            one.advantage,
            one.token_weight,
            tuple(sorted(numbers.get(one.key, ()), key=lambda chain: chain.index)),
        )
        for one in rollouts
    )
