"""The weights that the optimiser moves: float32, whatever the model computes in.

In bfloat16, an update of less than a 500th of a weight is rounded away, and most are smaller. So parameters in half
precision are copies, rounded after every update, of weights that are kept here; any others are the weights themselves.
"""

from __future__ import annotations

from typing import Any

import torch

HALF = (torch.bfloat16, torch.float16)


class MasterWeights:
    """Those of a model, by the names of its parameters, whose gradients they take over."""

    def __init__(self, model: Any) -> None:
        parameters: dict[str, torch.Tensor] = dict(model.named_parameters())
        self.named = {name: p.detach().float() if p.dtype in HALF else p for name, p in parameters.items()}
        self._copies = [(p, self.named[name]) for name, p in parameters.items() if p.dtype in HALF]

    def forget_gradients(self) -> None:
        for weight in [*self.named.values(), *(copy for copy, _ in self._copies)]:
            weight.grad = None

    def gather_gradients(self) -> None:
        """After every backward pass: the gradients of many micro-batches add up in float32 too."""
        for copy, weight in self._copies:
            if copy.grad is None:
                continue
            if weight.grad is None:
                weight.grad = copy.grad.float()
            else:
                weight.grad += copy.grad
            copy.grad = None

    @torch.no_grad()
    def update_copies(self) -> None:
        """After every change of the weights: what samples and computes sees the parameters alone."""
        for copy, weight in self._copies:
            copy.copy_(weight)
