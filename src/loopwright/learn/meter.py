"""Numbers of one train step, gathered over its micro-batches."""

from __future__ import annotations

import math

import torch


class Meter:
    """Sums on the way, means at the end. A step in which no rollout had an advantage has no token means."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._tokens = 0
        self._largest_mismatch = 0.0
        self._losses = 0.0
        self._norms: list[float] = []

    def tokens(
        self,
        logprobs: torch.Tensor,
        old: torch.Tensor,
        sampled: torch.Tensor,
        correction: torch.Tensor,
        entropy: torch.Tensor,
    ) -> None:
        mismatch = (old - sampled).abs()
        self._tokens += len(logprobs)
        self._largest_mismatch = max(self._largest_mismatch, float(mismatch.max()))
        sums = {
            "mismatch_mean": mismatch,
            "mismatch_kl": sampled - old,
            "importance_mean": correction,
            "ratio_mean": (logprobs - old).exp(),
            "entropy": entropy,
        }
        for name, values in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(values.double().sum())

    def loss(self, value: float) -> None:
        self._losses += value

    def grad_norm(self, value: float) -> None:
        self._norms.append(value)

    def metrics(self) -> dict[str, float]:
        means = {name: total / self._tokens for name, total in self._sums.items()}
        if self._tokens:
            means["mismatch_max"] = self._largest_mismatch
        return {
            "loss": self._losses / max(1, len(self._norms)),
            "grad_norm": math.fsum(self._norms) / max(1, len(self._norms)),
            "trained_tokens": float(self._tokens),
            **means,
        }
