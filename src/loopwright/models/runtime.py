"""Process-wide settings of torch and transformers, made once, on purpose."""

from __future__ import annotations

import torch
from transformers.utils import logging


def half_of_the_threads() -> int:
    """For each of two processes that compute at the same time. To be asked before `configure`."""
    return max(1, torch.get_num_threads() // 2)


def configure(*, threads: int | None, deterministic: bool) -> None:
    """Set the number of threads (None: torch's choice) and, if asked, refuse kernels that are not repeatable."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    logging.disable_progress_bar()
