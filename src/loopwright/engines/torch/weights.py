"""New weights for the embedded engine: a tensor for every parameter, or adapters to merge into some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from loopwright.core.adapter_names import are_adapters
from loopwright.errors import EngineError
from loopwright.models.adapters import AdaptedParameters


class EngineWeights:
    """The parameters of the model that an engine serves."""

    def __init__(self, model: Any) -> None:
        self._parameters: Mapping[str, torch.Tensor] = dict(model.named_parameters())
        self._adapted = AdaptedParameters(self._parameters)

    def change(self, tensors: Mapping[str, Any]) -> Callable[[], None]:
        """Check new weights. Gives what loads them, for the thread that computes."""
        if are_adapters(tensors):
            self._adapted.check(tensors)
            return partial(self._adapted.merge, tensors)
        unfit = [
            name for name, old in self._parameters.items() if name not in tensors or tensors[name].shape != old.shape
        ]
        if unfit:
            raise EngineError(
                f"new weights lack {len(unfit)} parameters or have them in another shape, such as {min(unfit)!r}; "
                "nothing was changed",
                remedy="pass every name of model.named_parameters(), from a model with the same config",
            )
        return partial(self._copy, tensors)

    @torch.no_grad()
    def _copy(self, tensors: Mapping[str, Any]) -> None:
        self._adapted.forget()
        for name, parameter in self._parameters.items():
            parameter.copy_(tensors[name])
