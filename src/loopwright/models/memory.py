"""How much memory there is and how much of it is in use, and which errors say that it ran out, or that the device is
broken."""

from __future__ import annotations

from pathlib import Path

import torch

from loopwright.models.control_groups import free_memory, lines, memory_limits, memory_sizes
from loopwright.models.device import CPU, CUDA

GIB = 1 << 30
WORDS = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What is said in the errors of torch's allocator for CPUs, of CUDA and NCCL, and of cuBLAS. These errors have no type
of their own, and all are RuntimeErrors."""


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.AcceleratorError):
        # CUDA's own, where torch's allocator was not asked.
        return "out of memory" in str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in WORDS)
    )


def is_device_broken(error: BaseException) -> bool:
    """Whether this process can compute nothing more on its device. After an illegal access, for example, every later
    call to CUDA fails."""
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)


def memory_of(device: torch.device) -> str:
    """The device, and how much of its memory is in use or free, for an error."""
    if device.type == CUDA:
        free, total = torch.cuda.mem_get_info(device)
        return f"{device} ({(total - free) / GIB:.1f} of {total / GIB:.1f} GiB in use)"
    free_now = free_memory() if device.type == CPU else None
    return str(device) if free_now is None else f"the {device} ({free_now / GIB:.1f} GiB free now)"


def anonymous_memory() -> int:
    """The bytes of this process that no file holds: what Python and the modules that it has imported take. 0 if the
    kernel does not say."""
    sizes = (line.split() for line in lines(Path("/proc/self/status")))
    return next((int(words[1]) * 1024 for words in sizes if words[:1] == ["RssAnon:"]), 0)


def room_on(device: str) -> tuple[int | None, int | None]:
    """How many bytes a device of this machine has, and how many of them are free now. None: it is not here, or nobody
    knows."""
    kind, _, number = device.partition(":")
    if kind == CPU:
        known = [limit for limit, _ in memory_limits()]
        whole = memory_sizes().get("MemTotal:")
        return min([*known, *([] if whole is None else [whole])], default=None), free_memory()
    if kind == CUDA and torch.cuda.is_available() and int(number or 0) < torch.cuda.device_count():
        free, total = torch.cuda.mem_get_info(torch.device(device))
        return total, free
    return None, None
