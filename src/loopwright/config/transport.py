"""How new weights reach an engine, by where it is. Pure, so that a config can be explained before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from loopwright.config.addresses import host_of, is_loopback


class Transport(StrEnum):
    """The ways of new weights from the learner to an engine."""

    IN_PLACE = "in place"
    """The engine computes with the learner's own parameters."""
    FILE = "file"
    """Through a file in shared memory."""
    BROADCAST = "broadcast"
    """Over the network, by torch.distributed."""
    OBJECT_STORE = "object store"
    """Through Ray's object store: one copy per node."""


@dataclass(frozen=True, slots=True)
class TransportChoice:
    """Which way, and why."""

    transport: Transport
    reason: str

    def __str__(self) -> str:
        return f"{self.transport} ({self.reason})"


IN_THIS_PROCESS = TransportChoice(Transport.IN_PLACE, "the engine computes with the learner's own parameters")
ON_THIS_MACHINE = TransportChoice(Transport.FILE, "the engine is a process on this machine, and shares its memory")
ON_THIS_NODE = TransportChoice(Transport.FILE, "the engine is on the driver's node, and shares its memory")
STORED_ELSEWHERE = TransportChoice(Transport.OBJECT_STORE, "the engine is an actor on another node")
SENT_ELSEWHERE = TransportChoice(Transport.BROADCAST, "the engine is a server on another node")


def transport_to(url: str) -> TransportChoice:
    """The way to the engine at `url`."""
    host = host_of(url) or ""
    if is_loopback(host):
        return TransportChoice(Transport.FILE, f"{host} is this machine, which shares its memory")
    return TransportChoice(Transport.BROADCAST, f"{host} may be another machine, which cannot open files of this one")
