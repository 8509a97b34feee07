"""A rank of the learner on an actor, as the actor sees it: the same code as in a child process, in a thread of its own.

It speaks to that code through pipes, as a driver does to a child process. When they close, the process ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from loopwright.core.together import to_its_end
from loopwright.models.openmp import wait_without_spinning
from loopwright.serve.frames import frame, receive_frame

if TYPE_CHECKING:
    from loopwright.learn.ranks.messages import WeightOffer

GET_ADDRESS = 0x8915
"""Linux: SIOCGIFADDR."""


@dataclass(frozen=True, slots=True)
class SentOffer:
    """Weights that rank 0 hands over to a driver on another node, with the bytes of the bucket's file."""

    offer: WeightOffer
    data: bytes


class HostedRank:
    """What the driver calls."""

    def __init__(self, calls: BinaryIO, answers: asyncio.StreamReader, folder: Path, address: str, far: bool) -> None:
        self._calls = calls
        self._answers = answers
        self._folder = folder
        self._address = address
        self._is_far = far

    async def meeting_place(self) -> str:
        """An address and a free port of this node, where the ranks can meet."""
        with socket.socket() as free:
            free.bind((self._address, 0))
            return f"{self._address}:{free.getsockname()[1]}"

    async def tell(self, value: object) -> None:
        from loopwright.learn.ranks.messages import RankPlace

        if isinstance(value, RankPlace):
            value = replace(value, folder=self._folder)
        # Once begun, a message is written whole: half of one would be taken for the beginning of the next.
        await to_its_end(asyncio.to_thread(self._write, frame(value)))

    async def hear(self) -> Any:
        """What the rank says next."""
        from loopwright.learn.ranks.messages import WeightOffer

        said = await receive_frame(self._answers)
        if self._is_far and isinstance(said, WeightOffer) and said.bucket is not None:
            return SentOffer(said, await asyncio.to_thread(said.bucket.read_bytes))
        return said

    def _write(self, data: bytes) -> None:
        self._calls.write(data)
        self._calls.flush()


@asynccontextmanager
async def hosted_rank(driver: str) -> AsyncIterator[HostedRank]:
    """Run a rank in this process, for the driver on the node `driver`."""
    from loopwright.cluster.node import node_address, this_node

    # Both before torch is imported.
    wait_without_spinning(os.environ)
    address = node_address()
    if (interface := interface_of(address)) is not None:
        os.environ.update(bound_to(interface, os.environ))
    (calls_out, calls_in), (answers_out, answers_in) = os.pipe(), os.pipe()
    served = (os.fdopen(calls_out, "rb"), os.fdopen(answers_in, "wb"))
    # Imported before anything arrives here that needs the same modules: two threads would each see half of them.
    serve = await asyncio.to_thread(_rank_code)
    threading.Thread(target=serve, args=served, name="rank", daemon=True).start()
    answers = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(answers), os.fdopen(answers_out, "rb")
    )
    with tempfile.TemporaryDirectory(prefix="loopwright-rank-", ignore_cleanup_errors=True) as folder:
        # Not closed: the process would end before it has answered. Ray ends it.
        calls = os.fdopen(calls_in, "wb")
        yield HostedRank(calls, answers, Path(folder), address, far=driver != this_node())


def _rank_code() -> Callable[[BinaryIO, BinaryIO], None]:
    from loopwright.build.rank import open_rank
    from loopwright.learn.ranks.serving import DriverPipe, serve_rank

    return lambda calls, answers: serve_rank(DriverPipe(calls, answers), open_rank)


def bound_to(interface: str, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that bind a rank to a network interface. gloo would take whatever address the name of this machine
    has, and NCCL the first interface that it likes. What the user tells NCCL in `env` stays."""
    # NCCL takes a name for the beginning of names, unless it follows an equals sign.
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": env.get("NCCL_SOCKET_IFNAME", f"={interface}")}


def interface_of(address: str) -> str | None:
    """The network interface of this machine that has the address. None if that is not known."""
    if sys.platform != "linux":
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asking.fileno(), GET_ADDRESS, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has no address
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None
