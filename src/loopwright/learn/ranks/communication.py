"""How long a rank takes for communication. With gloo a collective returns when it is done; on a GPU only the time to
start it is seen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist


class Communication:
    """Adds up the seconds that this rank was in collectives of its shards."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    def gather(self, output: torch.Tensor, part: torch.Tensor, group: Any, *, async_op: bool) -> Any:
        with self._timed():
            return dist.all_gather_single(output, part, group=group, async_op=async_op)

    def reduce(self, output: torch.Tensor, whole: torch.Tensor, group: Any, op: Any, *, async_op: bool) -> Any:
        with self._timed():
            return dist.reduce_scatter_single(output, whole, op=op, group=group, async_op=async_op)


class _Buffers:
    """What FSDP2 asks of every kind of communication: a buffer per call."""

    def __init__(self, communication: Communication) -> None:
        self._communication = communication

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class TimedGather(_Buffers):
    """FSDP2's gathering of parameters, timed."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        return self._communication.gather(output_tensor, input_tensor, group, async_op=async_op)


class TimedReduce(_Buffers):
    """FSDP2's reduction of gradients, timed."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        return self._communication.reduce(output_tensor, input_tensor, group, op, async_op=async_op)
