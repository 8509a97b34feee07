"""Process-wide settings of torch and transformers. They are made once, by an explicit call."""

from __future__ import annotations

import ctypes
import platform

import torch
from transformers.utils import logging

MB = 2**20

MALLOC = {-1: 256 * MB, -2: 64 * MB, -3: 32 * MB}
"""glibc's M_TRIM_THRESHOLD (how much free memory is kept at the end of the heap), M_TOP_PAD (how much the heap grows at
least) and M_MMAP_THRESHOLD (from which size memory is mapped and unmapped separately). Without a setting, glibc raises
the last one to 32 MB by itself."""


def all_threads() -> int:
    """The number of threads that torch has chosen. Call it before `configure`."""
    return torch.get_num_threads()


def half_of_the_threads() -> int:
    """The number of threads for each of two processes that compute at the same time. Call it before `configure`."""
    return max(1, torch.get_num_threads() // 2)


def configure(*, threads: int | None, deterministic: bool) -> None:
    """Set the number of threads (None: torch's choice). With `deterministic`, refuse kernels that are not
    repeatable."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    # Containers for GPUs may switch TF32 on by a variable. It rounds float32 to 10 bits, and no proof would hold.
    torch.set_float32_matmul_precision("highest")
    logging.disable_progress_bar()
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory. Every step allocates and frees the same large tensors. If their memory were returned
    to the system each time, all its pages would be mapped and cleared again: 2,500 pages, 5 ms, in a train step of
    100 ms."""
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        for option, size in MALLOC.items():
            mallopt(option, size)
