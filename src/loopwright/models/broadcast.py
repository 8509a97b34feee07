"""The bytes of a weight file, from one process to others by torch.distributed.

A group is made for one update and dropped after it: whoever dies or hangs takes only this update with it. Everything is
received and checked before anything is changed. Each side gives up after the update's `seconds`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, TCPStore

from loopwright.errors import WeightsError
from loopwright.models.weight_files import checksum_text, spec_of
from loopwright.types import BroadcastBackend, WeightBroadcast

SENDER = 0
SEND_AGAIN = "nothing to do: the weights are sent again when the engine is back"


class BroadcastGroup:
    """The group of one update, as one of its members sees it. Making it waits for the others."""

    def __init__(self, update: WeightBroadcast, rank: int, store: Store, interface: str) -> None:
        self._timeout = timedelta(seconds=update.seconds)
        self._update = update
        store = PrefixStore(update.name, store)
        try:
            self._group = _group(update, rank, store, interface, self._timeout)
        except RuntimeError as error:
            raise _broken(update, error) from error

    def buckets(self, buffer: torch.Tensor) -> Iterator[torch.Tensor]:
        """Broadcast the bytes in `buffer`, or fill it, bucket by bucket. Gives each bucket when it has arrived."""
        options = BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = SENDER, 0, self._timeout
        is_on_gpu = self._update.backend is BroadcastBackend.NCCL
        for bucket in torch.split(buffer, self._update.bucket_bytes):
            moved = bucket.cuda() if is_on_gpu else bucket
            try:
                self._group.broadcast([moved], options).wait(self._timeout)
            except RuntimeError as error:
                raise _broken(self._update, error) from error
            if is_on_gpu:
                bucket.copy_(moved)
            yield bucket


def receive_weights(update: WeightBroadcast, rank: int = 1) -> Mapping[str, torch.Tensor]:
    """Receive a weight file as one of its receivers, verify it, and return its tensors."""
    timeout = timedelta(seconds=update.seconds)
    try:
        store = TCPStore(update.host, update.port, is_master=False, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise _broken(update, error) from error
    buffer = torch.empty(update.file.bytes, dtype=torch.uint8)
    checksum = 0
    for bucket in BroadcastGroup(update, rank, store, update.host).buckets(buffer):
        checksum = zlib.crc32(bucket.numpy().data, checksum)
    if checksum_text(checksum) != update.file.checksum:
        raise _unfit(f"their checksum is {checksum_text(checksum)} instead of {update.file.checksum}")
    try:
        tensors: dict[str, torch.Tensor] = load_bytes(buffer.numpy().tobytes())
    except SafetensorError as error:
        raise _unfit(str(error)) from error
    if {name: spec_of(tensor) for name, tensor in tensors.items()} != dict(update.file.tensors):
        raise _unfit("their tensors are not those of the manifest")
    return tensors


def _group(update: WeightBroadcast, rank: int, store: Store, interface: str, timeout: timedelta) -> Any:
    if update.backend is BroadcastBackend.NCCL:
        # NCCL needs a GPU: this branch has never run here.
        from torch.distributed import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        options._timeout = timeout
        return ProcessGroupNCCL(store, rank, update.size, options)
    gloo = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    gloo._timeout = timeout
    # Without a device, gloo listens on the interface of the machine's name.
    gloo._devices = [ProcessGroupGloo.create_device(hostname=interface)]
    return ProcessGroupGloo(store, rank, update.size, gloo)


def _broken(update: WeightBroadcast, error: Exception) -> WeightsError:
    why = str(error).splitlines()[0] if str(error) else type(error).__name__
    return WeightsError(
        f"the broadcast {update.name} of weights at {update.host}:{update.port} broke, or took longer than "
        f"{update.seconds:g} s: {why}; nothing was changed",
        remedy=SEND_AGAIN,
    )


def _unfit(why: str) -> WeightsError:
    return WeightsError(f"weights arrived that cannot be used: {why}; nothing was changed", remedy=SEND_AGAIN)
