"""The frames of a relay: one binary message of a WebSocket each.

    version (1 byte) | type (1 byte) | request (8 bytes, big-endian) | payload

The invariants: a frame that was encoded is read as an equal frame, and whatever else arrives raises RefusedError and
nothing else. A frame of another version of the protocol is told from a damaged one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import orjson

from loopwright.errors import RefusedError

PROTOCOL = 1
MAX_FRAME_BYTES = 256 << 10
CHUNK_BYTES = 64 << 10
"""Bodies travel in pieces of this size, so that a long one does not hold up the others on its connection."""
WINDOW_BYTES = 512 << 10
"""How many bytes of one answer may be on their way, or be waiting for their reader."""
WRONG_PROTOCOL = 426

_HEAD = struct.Struct(">BBQ")
_NUMBER = struct.Struct(">I")


class FrameType(IntEnum):
    """What a frame is. The first three belong to the connection, all others to one request."""

    HELLO = 1
    """Worker: who it is, and which model it serves, as JSON."""
    WELCOME = 2
    """Gateway: the worker is accepted."""
    REFUSED = 3
    """Gateway: the worker is not accepted. The reason, as JSON."""
    ASK = 4
    """Gateway: a request begins. Its method, path and headers, as JSON."""
    STATUS = 5
    """Worker: an answer begins. Its HTTP status."""
    PART = 6
    """Both: the next bytes of a body."""
    END = 7
    """Both: the body has ended. If an answer is not whole, it broke off."""
    CANCEL = 8
    """Gateway: nobody waits for this answer any more."""
    CREDIT = 9
    """Gateway: so many bytes of the answer were read, and as many more may be sent."""


OF_CONNECTION = frozenset({FrameType.HELLO, FrameType.WELCOME, FrameType.REFUSED})
AS_JSON = frozenset({FrameType.HELLO, FrameType.REFUSED, FrameType.ASK})
AS_NUMBER = frozenset({FrameType.STATUS, FrameType.CREDIT})
EMPTY = frozenset({FrameType.WELCOME, FrameType.END, FrameType.CANCEL})


@dataclass(frozen=True, slots=True)
class RelayFrame:
    """`request` is 0 in frames of the connection."""

    type: FrameType
    request: int = 0
    payload: bytes = b""

    def encoded(self) -> bytes:
        return _HEAD.pack(PROTOCOL, self.type, self.request) + self.payload

    @property
    def number(self) -> int:
        """The payload of STATUS and CREDIT."""
        return int(_NUMBER.unpack(self.payload)[0])

    @property
    def words(self) -> Mapping[str, Any]:
        """The payload of HELLO, REFUSED and ASK."""
        try:
            said = orjson.loads(self.payload)
        except orjson.JSONDecodeError as error:
            raise protocol_broken(f"{self.type.name} holds no JSON: {error}") from error
        if not isinstance(said, dict):
            raise protocol_broken(f"{self.type.name} holds no JSON object")
        return said


def frame_of_words(type: FrameType, said: Mapping[str, Any], request: int = 0) -> RelayFrame:
    return RelayFrame(type, request, orjson.dumps(said))


def frame_of_number(type: FrameType, number: int, request: int) -> RelayFrame:
    return RelayFrame(type, request, _NUMBER.pack(number))


def parts_of(body: bytes, request: int) -> Iterator[RelayFrame]:
    """The frames of a body, without its end."""
    for start in range(0, len(body), CHUNK_BYTES):
        yield RelayFrame(FrameType.PART, request, body[start : start + CHUNK_BYTES])


def frame_in(message: bytes | str | None) -> RelayFrame:
    """The frame in a message. Raises RefusedError for everything else."""
    if not isinstance(message, bytes):
        raise protocol_broken("a message is text")
    if message[:1] and message[0] != PROTOCOL:
        raise RefusedError(
            f"this is protocol {message[0]} of the relay, and protocol {PROTOCOL} is spoken here",
            remedy="use the same version of Loopwright on both sides",
            status=WRONG_PROTOCOL,
        )
    if not _HEAD.size <= len(message) <= MAX_FRAME_BYTES:
        raise protocol_broken(f"a frame has {len(message):,} bytes")
    _, kind, request = _HEAD.unpack_from(message)
    if kind not in tuple(FrameType):
        raise protocol_broken(f"there is no frame of type {kind}")
    frame = RelayFrame(FrameType(kind), request, message[_HEAD.size :])
    if (frame.type in OF_CONNECTION) != (request == 0):
        raise protocol_broken(f"{frame.type.name} names request {request}")
    if frame.type in AS_NUMBER and len(frame.payload) != _NUMBER.size:
        raise protocol_broken(f"{frame.type.name} has {len(frame.payload)} bytes, and not {_NUMBER.size}")
    if frame.type in EMPTY and frame.payload:
        raise protocol_broken(f"{frame.type.name} has a payload")
    if frame.type in AS_JSON:
        # Reading it is the check.
        _ = frame.words
    return frame


def protocol_broken(what: str) -> RefusedError:
    return RefusedError(
        f"the relay's protocol is broken: {what}", remedy="use the same version of Loopwright on both sides", status=400
    )
