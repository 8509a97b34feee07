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

from loopwright.errors import LearnerError
from loopwright.learn.ranks.messages import RankPlace
from loopwright.models.device import CUDA

PATIENCE = 2.0
"""A collective gives up after so many times the silence that is allowed: the driver knows better who is silent."""
MOST_SECONDS = 60.0
"""It waits at least so long, because the first collective waits for the slowest start."""
DEBUG_REMEDY = "set NCCL_DEBUG=WARN in the environment of the run: then the log of the rank says which call failed"
OWN_FAULTS = {
    "duplicate gpu": "give each rank a GPU of its own: lower learner.ranks, or on a cluster set "
    "learner.num_gpus_per_rank to 1",
    "out of memory": "see with nvidia-smi what else is on the GPU; or raise learner.ranks",
    "invalid usage": DEBUG_REMEDY,
    "invalid argument": DEBUG_REMEDY,
    "ncclinvalidusage": DEBUG_REMEDY,
    "ncclinvalidargument": DEBUG_REMEDY,
}
"""What NCCL says, in lower case, where the fault is the rank's own."""
OWN_AT_OPENING = ("unhandled cuda error", "ncclunhandledcudaerror")
"""Later, this may come of the end of a rank whose memory is shared."""
SYSTEM_REMEDY = f"see whether /dev/shm is full, and whether NCCL_SOCKET_IFNAME names an interface; or {DEBUG_REMEDY}"
OF_PEERS = ("connect", "remote", "peer", "timed out")
"""What NCCL says if a system call has failed because of another rank."""


@contextmanager
def meeting(place: RankPlace, device: torch.device) -> Iterator[DeviceMesh]:
    """Meet the other ranks, which know the same folder or the same address."""
    timeout = timedelta(seconds=PATIENCE * place.silence_seconds + MOST_SECONDS)
    is_on_gpu = device.type == CUDA
    if is_on_gpu:
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(
            "nccl" if is_on_gpu else "gloo",
            store=_store(place, timeout),
            rank=place.rank,
            world_size=place.ranks,
            timeout=timeout,
            # NCCL connects now, not at the first collective, so that what is wrong with it shows here.
            device_id=device if is_on_gpu else None,
        )
    except dist.DistBackendError as error:
        if (fault := own_fault(error, opening=True)) is not None:
            raise fault from error
        raise
    try:
        yield init_device_mesh(device.type, (place.ranks,))
    finally:
        dist.destroy_process_group()


def is_of_others(error: BaseException) -> bool:
    """Whether a collective failed because another rank has gone, or the way to it. gloo has no type for that, but each
    of its errors names the file that it comes from."""
    if own_fault(error) is not None:
        return False
    return isinstance(error, dist.DistError) or (type(error) is RuntimeError and "gloo" in str(error))


def own_fault(error: BaseException, *, opening: bool = False) -> LearnerError | None:
    """What NCCL says of this rank itself, as an error with its remedy: new ranks would meet the same. None if another
    rank may be the cause. NCCL has one type for all errors, so their texts tell them apart."""
    if not isinstance(error, dist.DistBackendError):
        return None
    text = str(error).lower()
    found = [remedy for words, remedy in OWN_FAULTS.items() if words in text]
    if not found and opening and any(words in text for words in OWN_AT_OPENING):
        found = [DEBUG_REMEDY]
    # A system call may also fail because a peer has gone. At the opening it may be a full /dev/shm.
    if not found and opening and "ncclsystemerror" in text and not any(words in text for words in OF_PEERS):
        found = [SYSTEM_REMEDY]
    if not found:
        return None
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return LearnerError(f"NCCL failed: {'; '.join(lines[1:] or lines)}", remedy=found[0])


def _store(place: RankPlace, timeout: timedelta) -> Store:
    if place.address is None:
        return FileStore(str(place.folder / "meeting"), place.ranks)
    host, _, port = place.address.rpartition(":")
    # The wait would be for all ranks to connect, one after the other.
    return TCPStore(host, int(port), place.ranks, is_master=place.rank == 0, timeout=timeout, wait_for_workers=False)
