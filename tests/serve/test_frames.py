"""Values over pipes: whole, in order, and an end that is told from silence."""

from __future__ import annotations

import asyncio
import io
import os

import pytest

from loopwright.serve.frames import frame, read_frame, receive_frame

VALUES = [{"a": [1, 2.5]}, "text", b"x" * 300_000, None]


def test_what_is_written_is_read() -> None:
    pipe = io.BytesIO(b"".join(map(frame, VALUES)))
    assert [read_frame(pipe) for _ in VALUES] == VALUES
    with pytest.raises(EOFError):
        read_frame(pipe)


def test_half_a_value_is_the_end() -> None:
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(frame("text")[:-1]))


async def test_an_event_loop_reads_the_same() -> None:
    reading, writing = os.pipe()
    reader = asyncio.StreamReader()
    with os.fdopen(reading, "rb") as end:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), end)

        def write() -> None:
            with os.fdopen(writing, "wb") as pipe:
                for value in VALUES:
                    pipe.write(frame(value))

        writer = asyncio.create_task(asyncio.to_thread(write))
        assert [await receive_frame(reader) for _ in VALUES] == VALUES
        with pytest.raises(EOFError):
            await receive_frame(reader)
        await writer
