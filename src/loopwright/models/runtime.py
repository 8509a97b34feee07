"""Process-wide settings of torch and transformers, made once, on purpose."""

from __future__ import annotations

import ctypes
import platform

import torch
from transformers.utils import logging

MB = 2**20

MALLOC = {-1: 256 * MB, -2: 64 * MB, -3: 32 * MB}
"""glibc's M_TRIM_THRESHOLD (free memory at the end of the heap that is kept), M_TOP_PAD (what the heap grows by at
least) and M_MMAP_THRESHOLD (what is mapped and unmapped alone). Left alone, the last rises to 32 MB by itself."""


def half_of_the_threads() -> int:
    """For each of two processes that compute at the same time. To be asked before `configure`."""
    return max(1, torch.get_num_threads() // 2)


def configure(*, threads: int | None, deterministic: bool) -> None:
    """Set the number of threads (None: torch's choice) and, if asked, refuse kernels that are not repeatable."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    logging.disable_progress_bar()
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Every step allocates and frees the same large tensors. If their memory went back to the system each time, all its
    pages would have to be mapped and cleared anew: 2,500 of them, 5 ms, in a train step of 100."""
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        for option, size in MALLOC.items():
            mallopt(option, size)
