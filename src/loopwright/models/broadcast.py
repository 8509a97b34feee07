"""The bytes of a weight file, from one process to the workers of one engine by torch.distributed.

A group is made for one update and dropped after it: whoever dies or hangs takes only this update with it. Everything is
received and checked before anything is changed. `seconds` limits the whole transfer on each side, not each bucket.
"""

from __future__ import annotations

import queue
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, TCPStore

from loopwright.errors import WeightsError
from loopwright.models.weight_files import WRITE_AGAIN, file_tensors, mapped, verify
from loopwright.types import BroadcastBackend, WeightBroadcast, WeightFile

SENDER = 0
GPU = "cuda:0"
SLACK_SECONDS = 1.0
"""The group ends by itself when its time is over. It gets so much longer to say what went wrong."""
ARRIVAL_SECONDS = 0.005
"""How often the sender looks whether all receivers are here."""
CONNECT_SECONDS = 10.0
LONG_SECONDS = 24 * 3600
SEND_AGAIN = "nothing to do: the weights are sent again when the engine is back; if it happens often, see its log"


class _Group:
    """The group of one update, as one of its members sees it. Making it waits for the others."""

    def __init__(
        self, update: WeightBroadcast, rank: int, store: Store, interface: str, deadline: float, device: str = GPU
    ) -> None:
        self._update = update
        self._deadline = deadline
        self._sends = rank == SENDER
        # A new thread would take the first GPU of the process, whatever the others compute on.
        self._device = device if update.backend is BroadcastBackend.NCCL else None
        store = PrefixStore(update.name, store)
        if self._device is not None:
            # NCCL needs a GPU: this has never run here. Its own watchdog would end the process when the group's time is
            # over, so that is long, and `wait` below ends the call instead.
            from torch.distributed import ProcessGroupNCCL

            nccl = ProcessGroupNCCL.Options()
            nccl._timeout = timedelta(seconds=LONG_SECONDS)
            self._group: Any = ProcessGroupNCCL(store, rank, update.size, nccl)
        else:
            gloo = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            gloo._timeout = self._left()
            # Without a device, gloo listens on the interface of the machine's name.
            gloo._devices = [ProcessGroupGloo.create_device(hostname=interface)]
            self._group = ProcessGroupGloo(store, rank, update.size, gloo)

    def buckets(self, data: torch.Tensor) -> Iterator[torch.Tensor]:
        """Send the bytes in `data`, or fill it, bucket by bucket. Gives each bucket when it was sent or has arrived."""
        options = BroadcastOptions()
        options.rootRank = SENDER
        for bucket in torch.split(data, self._update.bucket_bytes):
            moved = bucket if self._device is None else bucket.to(self._device)
            self._group.broadcast([moved], options).wait(self._left())
            # The sender's bytes are a mapping of the file: writing would make a copy of it in memory.
            if self._device is not None and not self._sends:
                bucket.copy_(moved)
            yield bucket

    def _left(self) -> timedelta:
        return _left(self._update, self._deadline)


class BroadcastSender:
    """Offers a weight file to `workers` receivers, at `host` and nowhere else. Each calls `receive_weights` with
    `update`, and `send` gives them its bytes. With NCCL they go through the GPU `device`.

    Making it opens a port. `send` blocks, and is for a thread of its own; `stop` may be called from any other.
    """

    def __init__(
        self,
        file: WeightFile,
        host: str,
        *,
        workers: int,
        backend: BroadcastBackend,
        seconds: float,
        bucket_bytes: int,
        device: str = GPU,
    ) -> None:
        self._device = device
        self._deadline = time.monotonic() + seconds
        self._stopped = threading.Event()
        try:
            self._data = mapped(file)
        except (OSError, ValueError) as error:
            raise WeightsError(f"the weights in {file.path} cannot be sent: {error}", remedy=WRITE_AGAIN) from error
        try:
            # A store that opens its port itself listens at all addresses of the machine.
            with socket.create_server((host, 0), family=_family(host)) as listening:
                port = listening.getsockname()[1]
                # Whoever can reach the port and does not know the name cannot join the group.
                name = f"loopwright-{secrets.token_hex(16)}"
                self.update = WeightBroadcast(file, host, port, name, 1 + workers, backend, seconds, bucket_bytes)
                self._store: TCPStore | None = TCPStore(
                    host,
                    port,
                    is_master=True,
                    timeout=timedelta(seconds=seconds),
                    wait_for_workers=False,
                    master_listen_fd=listening.detach(),
                )
                self._keys = self._store.num_keys()
        except (OSError, RuntimeError) as error:
            raise WeightsError(
                f"weights cannot be sent from {host}: {_first_line(error)}",
                remedy="name an address of this machine that the engines can reach",
            ) from error

    def send(self, on_sent: Callable[[], object]) -> None:
        """Send the file when all receivers have come. Returns after `stop`: until then the receivers may still be
        reading what was sent, so the group stays. Raises WeightsError if the bytes were not sent in time."""
        if (failed := self._failure(on_sent)) is not None:
            raise failed

    def _failure(self, on_sent: Callable[[], object]) -> WeightsError | None:
        """Send, and give what went wrong. It is not raised here: an error with a traceback would keep the group, whose
        end blocks whoever drops it until the deadline."""
        try:
            self._wait_for_receivers()
            if self._store is None or self._stopped.is_set():
                return None
            group = _Group(self.update, SENDER, self._store, self.update.host, self._deadline, self._device)
            for _ in group.buckets(self._data):
                if self._stopped.is_set():
                    return None
            on_sent()
            self._stopped.wait()
            return None
        except RuntimeError as error:
            return _broken(self.update, error)
        finally:
            self._store = None

    def stop(self) -> None:
        """Stop sending as soon as possible: at once, or when a bucket that nobody takes has run out of time."""
        self._stopped.set()

    def _wait_for_receivers(self) -> None:
        """Each writes its address into the store. Making the group before would block until the deadline, and could not
        be stopped. With NCCL the sender writes first."""
        receivers = 0 if self.update.backend is BroadcastBackend.NCCL else self.update.size - 1
        while self._store is not None and self._store.num_keys() - self._keys < receivers:
            _left(self.update, self._deadline)
            if self._stopped.wait(ARRIVAL_SECONDS):
                return


def receive_weights(update: WeightBroadcast, rank: int = 1, device: str = GPU) -> Mapping[str, torch.Tensor]:
    """Receive a weight file as one of its receivers, verify it, and return its tensors. Takes `seconds` at most. With
    NCCL the bytes come through the GPU `device`.

    The thread is for the sake of this limit: a store that accepts a connection and says nothing holds its client for
    ever. Such a thread stays, and has no weights yet. No kernel of torch runs in it, so that tokens are sampled
    meanwhile.
    """
    results: queue.SimpleQueue[Mapping[str, torch.Tensor] | Exception] = queue.SimpleQueue()
    deadline = time.monotonic() + update.seconds

    def receive() -> None:
        try:
            results.put(_received(update, rank, deadline, device))
        except (OSError, RuntimeError, ValueError) as error:
            # Without its traceback, which keeps the group: its end blocks whoever drops it until the deadline.
            results.put(_broken(update, error))
        except Exception as error:
            results.put(error)

    threading.Thread(target=receive, name="loopwright-receive", daemon=True).start()
    try:
        received = results.get(timeout=update.seconds + SLACK_SECONDS)
    except queue.Empty:
        raise _broken(update, _late(update)) from None
    if isinstance(received, Exception):
        raise received
    return received


def own_address(host: str, port: int) -> str:
    """The address of this machine that reaches `host`. A connected UDP socket knows it; nothing is sent."""
    family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as asking:
        asking.connect(address)
        return str(asking.getsockname()[0])


def _received(update: WeightBroadcast, rank: int, deadline: float, device: str) -> Mapping[str, torch.Tensor]:
    # The sender's port is open before anybody is told of it. If it is not, the sender has given up.
    seconds = timedelta(seconds=min(update.seconds, CONNECT_SECONDS))
    store = TCPStore(update.host, update.port, is_master=False, timeout=seconds, wait_for_workers=False)
    store.set_timeout(_left(update, deadline))
    group = _Group(update, rank, store, own_address(update.host, update.port), deadline, device)
    data = torch.empty(update.file.bytes, dtype=torch.uint8)
    checksum = 0
    for bucket in group.buckets(data):
        checksum = zlib.crc32(bucket.numpy().data, checksum)
    verify(checksum, update.file)
    return file_tensors(data, update.file)


def _left(update: WeightBroadcast, deadline: float) -> timedelta:
    if (seconds := deadline - time.monotonic()) <= 0:
        raise _late(update)
    return timedelta(seconds=seconds)


def _late(update: WeightBroadcast) -> RuntimeError:
    return RuntimeError(f"it was not done within {update.seconds:g} s")


def _family(host: str) -> socket.AddressFamily:
    return socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _broken(update: WeightBroadcast, error: Exception) -> WeightsError:
    return WeightsError(
        f"the broadcast of weights from {update.host}:{update.port} failed: {_first_line(error)}; nothing was changed",
        remedy=SEND_AGAIN,
    )
