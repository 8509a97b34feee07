"""Which part of a sharded tensor this rank holds: FSDP2 splits its rows evenly, and the last ranks may have fewer."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor


def part_here(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """This rank's part, and at which row of the whole it begins. It may have no rows."""
    if not isinstance(tensor, DTensor):
        return tensor.detach(), 0
    rows = -(-tensor.shape[0] // tensor.device_mesh.size())
    part: torch.Tensor = tensor.to_local()
    return part.detach(), min(rows * tensor.device_mesh.get_local_rank(), tensor.shape[0])


def gathered_from(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor. All ranks call it for the same tensors in the same order."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    found: torch.Tensor = tensor.full_tensor()
    return found.detach()
