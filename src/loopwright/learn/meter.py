"""Collects the metrics of one train step over its micro-batches."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from loopwright.learn.losses import TokenBatch
from loopwright.types import Level


class StepMeter:
    """Adds up sums during the step and gives means at the end. A step without trained rollouts has no token means."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._tokens = 0
        self._by_staleness: dict[int, tuple[float, int]] = {}
        """The sum of the mismatches, and the tokens."""
        self._largest_mismatch = 0.0
        self._losses = 0.0
        self._sft_losses: list[float] = []
        self._norms: list[float] = []

    def tokens(self, batch: TokenBatch, **others: torch.Tensor) -> None:
        """Add the trained tokens of one micro-batch. `others` are further numbers by name, one per token."""
        with torch.no_grad():
            mismatch = (batch.old_logprobs - batch.sampled_logprobs).abs()
            self._tokens += len(mismatch)
            self._largest_mismatch = max(self._largest_mismatch, float(mismatch.max()))
            self._add(
                {
                    "mismatch_mean": mismatch,
                    "mismatch_kl": batch.sampled_logprobs - batch.old_logprobs,
                    "ratio_mean": batch.ratio(Level.TOKEN),
                    **others,
                }
            )

    def staleness(self, batch: TokenBatch, staleness: torch.Tensor) -> None:
        """Add the mismatch of a micro-batch again, split by how old each token is: on tokens of older weights it also
        measures how far the policy has moved since."""
        with torch.no_grad():
            mismatch = (batch.old_logprobs - batch.sampled_logprobs).abs().double()
            sums = staleness.bincount(weights=mismatch).tolist()
            counts = staleness.bincount().tolist()
        for age, (total, tokens) in enumerate(zip(sums, counts, strict=True)):
            if tokens:
                total_before, tokens_before = self._by_staleness.get(age, (0.0, 0))
                self._by_staleness[age] = total_before + total, tokens_before + tokens

    def _add(self, values: Mapping[str, torch.Tensor]) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value.double().sum())

    def loss(self, value: float) -> None:
        """Add a part of a mini-batch's loss."""
        self._losses += value

    def sft_loss(self, value: float) -> None:
        """Add a mini-batch's SFT loss: the mean negative log-likelihood of its examples."""
        self._sft_losses.append(value)

    def grad_norm(self, value: float) -> None:
        self._norms.append(value)

    def add(self, other: StepMeter) -> None:
        """Add what another rank has measured of the same step. The gradient's norm is that of all ranks already."""
        self._tokens += other._tokens
        self._largest_mismatch = max(self._largest_mismatch, other._largest_mismatch)
        self._losses += other._losses
        for name, total in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + total
        for age, (total, tokens) in other._by_staleness.items():
            total_before, tokens_before = self._by_staleness.get(age, (0.0, 0))
            self._by_staleness[age] = total_before + total, tokens_before + tokens
        self._sft_losses = [mine + others for mine, others in zip(self._sft_losses, other._sft_losses, strict=True)]

    def metrics(self) -> dict[str, float]:
        means = {name: total / self._tokens for name, total in self._sums.items()}
        if self._tokens:
            means["mismatch_max"] = self._largest_mismatch
        for age, (total, tokens) in sorted(self._by_staleness.items()):
            means[f"mismatch_mean_s{age}"] = total / tokens
            means[f"mismatch_tokens_s{age}"] = float(tokens)
        if self._sft_losses:
            means["sft_loss"] = math.fsum(self._sft_losses) / len(self._sft_losses)
        return {
            "loss": self._losses / max(1, len(self._norms)),
            "grad_norm": math.fsum(self._norms) / max(1, len(self._norms)),
            "trained_tokens": float(self._tokens),
            **means,
        }
