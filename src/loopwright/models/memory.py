"""How much memory there is and how much of it is in use, and which errors say that it ran out, or that the device is
broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError

from loopwright.errors import ModelError
from loopwright.models.control_groups import free_memory, lines, memory_limits, memory_sizes
from loopwright.models.device import CPU, CUDA

GIB = 1 << 30
WORDS = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "Cannot allocate memory")
"""What is said in the errors of torch's allocator for CPUs, of CUDA and NCCL, of cuBLAS, and of the system where a file
is mapped. These errors have no type of their own."""

SMALLER_STATE = (
    "choose a smaller model, or a device with more memory; `loopwright check --memory` says what each part takes"
)
"""What to do where weights, gradients and moments are too much."""


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.AcceleratorError):
        # CUDA's own, where torch's allocator was not asked.
        return "out of memory" in str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError | OSError | SafetensorError) and any(words in str(error) for words in WORDS)
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


@contextmanager
def room_for_weights(source: str, device: torch.device, size: Callable[[], int]) -> Iterator[None]:
    """While the weights of the model at `source` get onto the device. They take `size` bytes, which is asked for only
    if memory runs out."""
    try:
        yield
    except (RuntimeError, MemoryError, ModelError) as error:
        # Who reads files says what is wrong with them, whatever it is.
        cause = error.__cause__ if isinstance(error, ModelError) else error
        if cause is None or not is_out_of_memory(cause):
            raise
        raise ModelError(
            f"out of memory on {memory_of(device)} while model {source!r} is loaded, whose weights take "
            f"{size() / GIB:.2f} GiB: {cause}",
            remedy=SMALLER_STATE,
        ) from cause


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
