"""A loss is a function: here SAPO's soft gate, which fades the gradient out where PPO's clip would cut it.

learner:
  mini_batches: 4
  loss:
    kind: python
    path: custom_loss.py:soft_gate
    args: {good: 1.0, bad: 1.05}
"""

from __future__ import annotations

import torch

from loopwright import Level
from loopwright.learn import TokenBatch


def soft_gate(batch: TokenBatch, good: float = 1.0, bad: float = 1.05) -> torch.Tensor:
    """One loss per token. The gate is steeper for bad tokens: they fade out sooner."""
    steepness = torch.where(batch.advantages > 0, good, bad)
    gate = torch.sigmoid(steepness * (batch.ratio(Level.TOKEN) - 1)) * 4 / steepness
    return -gate * batch.advantages
