"""HTTP/1.1 messages with a known length, found in a stream of bytes: all that the mock, the bare proxy and the load
generator need, and cheap enough that none of them is what is measured. Only the standard library."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from typing import cast

END_OF_HEAD = b"\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)


class Messages(asyncio.Protocol, ABC):
    """A connection on which whole messages arrive, one after the other. Subclasses say what to do with each."""

    def __init__(self) -> None:
        self._buffer = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        while (size := message_size(self._buffer)) is not None:
            message, self._buffer = self._buffer[:size], self._buffer[size:]
            self.message(message)

    @abstractmethod
    def message(self, message: bytes) -> None:
        """A whole one, head and body."""

    def send(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)


def message_size(buffer: bytes) -> int | None:
    """The bytes of the first message, None as long as it is not whole."""
    end = buffer.find(END_OF_HEAD)
    if end < 0:
        return None
    found = LENGTH.search(buffer, 0, end)
    if found is None and CHUNKED.search(buffer, 0, end) is not None:
        raise ValueError("a message of unknown length arrived, which is not measured here")
    size = end + len(END_OF_HEAD) + (int(found[1]) if found else 0)
    return size if len(buffer) >= size else None


def body_of(message: bytes) -> bytes:
    return message.partition(END_OF_HEAD)[2]


def request_bytes(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


def response_bytes(body: bytes, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
