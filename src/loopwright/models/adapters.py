"""Low-rank adapters (LoRA): beside its weight W, a linear layer has two small matrices, and computes W + s·B·A.

Whoever samples has W + s·B·A as one weight, and every place merges it here, so that all get the same bits. On the way,
an adapter is two tensors named after its weight, and B is already multiplied by the scale s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from loopwright.core.adapter_names import WEIGHT, A, B
from loopwright.errors import EngineError


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """What decides the adapters of a model, besides their numbers. `targets` are the ends of the names of the layers
    that have one; None means all linear layers but the head."""

    rank: int
    alpha: float
    targets: tuple[str, ...] | None = None
    rslora: bool = False

    @property
    def scale(self) -> float:
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)


def has_adapters(model: Any) -> bool:
    """Whether some layers of the model are peft's. Such a layer has a `weight` too, which is only the base's."""
    return any(type(module).__module__.partition(".")[0] == "peft" for module in model.modules())


def merged(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """W + B·A, computed in float32 and rounded once. `b` has the scale in it."""
    return torch.addmm(weight.float(), b, a).to(weight.dtype)


class AdaptedParameters:
    """The parameters of a model that samples, into which adapters are merged.

    `base` are the weights without adapters, by the names of their parameters. What is not in it is copied from the
    parameters at the first update.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor] | None = None) -> None:
        self._parameters = parameters
        self._base = dict(base or {})

    def forget(self) -> None:
        """Whole weights will come: what was the base is not any more."""
        self._base.clear()

    def check(self, adapters: Mapping[str, torch.Tensor]) -> None:
        """Raises EngineError if they do not fit the parameters."""
        unfit = [name for name in adapters if not self._fits(name, adapters)]
        if unfit:
            raise EngineError(
                f"{len(unfit)} tensors of an adapter do not fit this model, such as {min(unfit)!r}; nothing was "
                "changed",
                remedy="serve the model that the adapter was trained on",
            )

    def _fits(self, name: str, adapters: Mapping[str, torch.Tensor]) -> bool:
        target = next((name.removesuffix(end) for end in (A, B) if name.endswith(end)), None)
        if target is None or not {target + A, target + B} <= adapters.keys():
            return False
        weight, a, b = self._parameters.get(target + WEIGHT), adapters[target + A], adapters[target + B]
        if weight is None or not (weight.ndim == a.ndim == b.ndim == 2):
            return False
        return b.shape == (len(weight), len(a)) and a.shape[1] == weight.shape[1]

    @torch.no_grad()
    def merge(self, adapters: Mapping[str, torch.Tensor]) -> None:
        """Replace all adapters by these. To be called in the thread that computes."""
        targets = {name.removesuffix(A) for name in adapters if name.endswith(A)}
        for name in self._base.keys() - {target + WEIGHT for target in targets}:
            self._parameters[name].copy_(self._base[name])
        for target in targets:
            name = target + WEIGHT
            parameter = self._parameters[name]
            if name not in self._base:
                self._base[name] = parameter.detach().clone()
            a, b = (adapters[target + end].to(parameter.device) for end in (A, B))
            parameter.copy_(merged(self._base[name], a, b))
