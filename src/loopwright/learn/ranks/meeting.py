"""Where the ranks of a learner meet: through a file in a new folder, over loopback only.

torch's own store listens on all interfaces and has no key, so on one machine a file is used instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from loopwright.models.device import CUDA

PATIENCE = 2.0
"""A collective gives up after so many times the silence that is allowed: the driver knows better who is silent."""
MOST_SECONDS = 60.0
"""It waits at least so long, because the first collective waits for the slowest start."""


@contextmanager
def meeting(rank: int, ranks: int, folder: Path, device: torch.device, silence_seconds: float) -> Iterator[DeviceMesh]:
    """Meet the other ranks, which know the same `folder`."""
    timeout = timedelta(seconds=PATIENCE * silence_seconds + MOST_SECONDS)
    if device.type == CUDA:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == CUDA else "gloo",
        store=FileStore(str(folder / "meeting"), ranks),
        rank=rank,
        world_size=ranks,
        timeout=timeout,
    )
    try:
        yield init_device_mesh(device.type, (ranks,))
    finally:
        dist.destroy_process_group()
