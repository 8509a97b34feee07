"""Where the ranks of a learner meet: through a file in a new folder, over loopback only, or at an address.

torch's own store listens on all interfaces and has no key. So on one machine a file is used instead, and an address has
to be one of a private network.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from loopwright.learn.ranks.messages import RankPlace
from loopwright.models.device import CUDA

PATIENCE = 2.0
"""A collective gives up after so many times the silence that is allowed: the driver knows better who is silent."""
MOST_SECONDS = 60.0
"""It waits at least so long, because the first collective waits for the slowest start."""


@contextmanager
def meeting(place: RankPlace, device: torch.device) -> Iterator[DeviceMesh]:
    """Meet the other ranks, which know the same folder or the same address."""
    timeout = timedelta(seconds=PATIENCE * place.silence_seconds + MOST_SECONDS)
    if device.type == CUDA:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == CUDA else "gloo",
        store=_store(place, timeout),
        rank=place.rank,
        world_size=place.ranks,
        timeout=timeout,
    )
    try:
        yield init_device_mesh(device.type, (place.ranks,))
    finally:
        dist.destroy_process_group()


def is_of_others(error: BaseException) -> bool:
    """Whether a collective failed because another rank has gone, or the way to it. gloo has no type for that, but each
    of its errors names the file that it comes from."""
    return isinstance(error, dist.DistError) or (type(error) is RuntimeError and "gloo" in str(error))


def _store(place: RankPlace, timeout: timedelta) -> Store:
    if place.address is None:
        return FileStore(str(place.folder / "meeting"), place.ranks)
    host, _, port = place.address.rpartition(":")
    # The wait would be for all ranks to connect, one after the other.
    return TCPStore(host, int(port), place.ranks, is_master=place.rank == 0, timeout=timeout, wait_for_workers=False)
