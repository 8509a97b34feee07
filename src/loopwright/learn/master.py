"""The weights that the optimiser changes. They are float32, no matter in which precision the model computes.

In bfloat16, an update of less than a 500th of a weight is rounded away, and most updates are smaller. So the optimiser
changes float32 weights that are kept here, and parameters in half precision are rounded copies of them. Parameters in
float32 are the weights themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

FLOAT32 = 4
HALF = (torch.bfloat16, torch.float16)


class MasterWeights:
    """The weights that are trained, by the names of their parameters. They take over the parameters' gradients."""

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self.named = {name: p.detach().float() if p.dtype in HALF else p for name, p in parameters.items()}
        self._copies = [(p, self.named[name]) for name, p in parameters.items() if p.dtype in HALF]

    @staticmethod
    def bytes_of(parameters: Mapping[str, torch.Tensor]) -> int:
        """What float32 weights of these parameters take beside them."""
        return sum(FLOAT32 * p.numel() for p in parameters.values() if p.dtype in HALF)

    def forget_gradients(self) -> None:
        for weight in [*self.named.values(), *(copy for copy, _ in self._copies)]:
            weight.grad = None

    def gather_gradients(self) -> None:
        """To be called after every backward pass, so that the gradients of the micro-batches also add up in float32."""
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
        """To be called after every change of the weights, because the engine and the forward pass read the
        parameters."""
        for copy, weight in self._copies:
            copy.copy_(weight)
