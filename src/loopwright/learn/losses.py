"""Losses: pure functions of per-token tensors. The sum over tokens of weight x loss is the mini-batch's loss."""

from __future__ import annotations

import torch


def ppo_clip(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, *, clip_low: float, clip_high: float
) -> torch.Tensor:
    """The clipped policy-gradient loss of each token."""
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def importance(old_logprobs: torch.Tensor, sampled_logprobs: torch.Tensor, cap: float | None) -> torch.Tensor:
    """The truncated importance weight between the policy that sampled a token and the one that is trained.

    `cap` None switches the correction off.
    """
    if cap is None:
        return torch.ones_like(old_logprobs)
    return (old_logprobs - sampled_logprobs).exp().clamp(max=cap).detach()
