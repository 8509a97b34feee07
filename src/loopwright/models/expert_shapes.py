"""Products of experts without numbers.

torch knows the shape of such a product in bfloat16 only, and computes it in every precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class ExpertShapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, a product of grouped rows gives an empty tensor of the right shape."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._grouped_mm.default:
            return _product(*args, **kwargs)
        return func(*args, **kwargs)


def _product(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Whichever of both has a dimension less has the rows or columns of all groups one after the other."""
    groups = () if offs is None or a.dim() != b.dim() else (len(offs),)
    if a.dim() == b.dim() == 3:
        groups = (len(a),)
    return a.new_empty(*groups, a.shape[-2], b.shape[-1], dtype=out_dtype or a.dtype)
