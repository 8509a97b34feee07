"""A process group beside torch's default one, over which rank 0 broadcasts weights."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

TIMEOUT_SECONDS = 300


class WeightGroup:
    """Joins the group; this blocks until all ranks are there. Keys in the store are those of `init_process_group`."""

    def __init__(self, address: str, port: int, rank: int, size: int, name: str, backend: str) -> None:
        if backend != "gloo":
            raise RuntimeError(f"the backend {backend} is not available")
        self.name = name
        timeout = timedelta(seconds=TIMEOUT_SECONDS)
        store, rank, size = next(rendezvous(f"tcp://{address}:{port}", rank, size, timeout=timeout))
        store.set_timeout(timeout)
        self._group, _ = distributed_c10d._new_process_group_helper(
            size,
            rank,
            [],
            distributed_c10d.Backend(backend),
            PrefixStore(name, store),
            group_name=distributed_c10d.GroupName(name),
            timeout=timeout,
        )
        distributed_c10d._world.pg_group_ranks[self._group] = {i: i for i in range(size)}

    def receive(
        self, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]], load_format: str | None
    ) -> list[tuple[str, torch.Tensor]]:
        made = [(n, torch.empty(s, dtype=getattr(torch, d))) for n, d, s in zip(names, dtypes, shapes, strict=True)]
        if load_format == "flattened_bucket":
            raise RuntimeError("the fake of SGLang does not read flattened buckets")
        for work in [dist.broadcast(t, src=0, group=self._group, async_op=True) for _, t in made]:
            work.wait()
        return made

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """The other side of `receive`, for rank 0."""
        for work in [dist.broadcast(t.contiguous(), src=0, group=self._group, async_op=True) for t in tensors]:
            work.wait()

    def close(self) -> None:
        dist.destroy_process_group(self._group)
