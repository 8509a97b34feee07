"""Python values over the pipes between a process and a child that it has started. Both run the same code as the same
user, so pickle is no door: nobody else can write to these pipes."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any, BinaryIO

LENGTH = 8
"""A frame begins with its length in so many bytes."""


def frame(value: object) -> bytes:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(LENGTH, "little") + data


def read_frame(pipe: BinaryIO) -> Any:
    """The next value. Raises EOFError when the other end is closed."""
    return pickle.loads(_exactly(pipe, int.from_bytes(_exactly(pipe, LENGTH), "little")))


async def receive_frame(pipe: asyncio.StreamReader) -> Any:
    """The next value. Raises EOFError when the other end is closed."""
    try:
        length = int.from_bytes(await pipe.readexactly(LENGTH), "little")
        return pickle.loads(await pipe.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError from error


def _exactly(pipe: BinaryIO, size: int) -> bytes:
    parts = []
    while size:
        part = pipe.read(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
