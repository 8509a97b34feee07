"""Says which task the n-th draw is, as a pure function of (seed, draw). Each epoch has its own seeded order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loopwright.core.order import epoch_order
from loopwright.ports import TaskSource
from loopwright.types import Task

_Order = range | npt.NDArray[np.int64]


class EpochSampler:
    """Gives every task once per epoch. The order of the last used epoch is cached, because draws come in order."""

    def __init__(self, source: TaskSource, seed: int, shuffle: bool = True) -> None:
        self._source = source
        self._seed = seed
        self._shuffle = shuffle
        self._latest: tuple[int, _Order] = (0, self._order(0))

    def __len__(self) -> int:
        return len(self._source)

    def task(self, draw: int) -> Task:
        epoch, place = divmod(draw, len(self._source))
        known, order = self._latest
        if known != epoch:
            order = self._order(epoch)
            self._latest = (epoch, order)
        return self._source[int(order[place])]

    def _order(self, epoch: int) -> _Order:
        size = len(self._source)
        if not self._shuffle:
            return range(size)
        return epoch_order(self._seed, epoch, size)
