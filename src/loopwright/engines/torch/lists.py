"""Python's numbers as a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def tensor_of(numbers: Sequence[int]) -> torch.Tensor:
    """By way of numpy, which reads a list several times faster than torch does (64 numbers: 5 us instead of 20)."""
    return torch.as_tensor(np.array(numbers, np.int64))
