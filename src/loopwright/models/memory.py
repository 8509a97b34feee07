"""Recognises errors that say that memory ran out, and says how much of it is in use."""

from __future__ import annotations

import torch

from loopwright.models.control_groups import free_memory
from loopwright.models.device import CPU, CUDA

GIB = 1 << 30
OF_CPU = "can't allocate memory"
"""A part of the error of torch's allocator for CPUs, which is a plain RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and OF_CPU in str(error)
    )


def memory_of(device: torch.device) -> str:
    """The device, and how much of its memory is in use or free, for an error."""
    if device.type == CUDA:
        free, total = torch.cuda.mem_get_info(device)
        return f"{device} ({(total - free) / GIB:.1f} of {total / GIB:.1f} GiB in use)"
    free_now = free_memory() if device.type == CPU else None
    return str(device) if free_now is None else f"the {device} ({free_now / GIB:.1f} GiB free now)"
