"""The order in which items are taken: each once per epoch, every epoch in a seeded order of its own."""

from __future__ import annotations

import numpy as np

from loopwright.core.seeds import derive_seed


def epoch_order(seed: int, epoch: int, size: int) -> list[int]:
    """A permutation of `range(size)` that depends on nothing but the arguments."""
    permutation = np.random.default_rng(derive_seed("epoch", seed, epoch)).permutation(size)
    return [int(index) for index in permutation]
