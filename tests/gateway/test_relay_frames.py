"""The frames of a relay: what was encoded is read again, and nothing else is."""

from __future__ import annotations

import struct

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as some

from loopwright.errors import RefusedError
from loopwright.gateway.relay.frames import (
    AS_JSON,
    AS_NUMBER,
    CHUNK_BYTES,
    EMPTY,
    MAX_FRAME_BYTES,
    OF_CONNECTION,
    PROTOCOL,
    FrameType,
    RelayFrame,
    frame_in,
    parts_of,
)
from loopwright.gateway.relay.hello import Hello, WorkerModel, hello_of, may_pass, refusal_frame, refusal_of

SAID = some.dictionaries(some.text(max_size=8), some.none() | some.integers(0, 9) | some.text(max_size=8), max_size=4)


@some.composite
def frames(draw: some.DrawFn) -> RelayFrame:
    kind = draw(some.sampled_from(FrameType))
    request = 0 if kind in OF_CONNECTION else draw(some.integers(1, (1 << 64) - 1))
    if kind in AS_JSON:
        return RelayFrame(kind, request, orjson.dumps(draw(SAID)))
    if kind in AS_NUMBER:
        return RelayFrame(kind, request, struct.pack(">I", draw(some.integers(0, (1 << 32) - 1))))
    return RelayFrame(kind, request, b"" if kind in EMPTY else draw(some.binary(max_size=64)))


@given(frames())
def test_a_frame_is_decoded_to_what_was_encoded(frame: RelayFrame) -> None:
    assert frame_in(frame.encoded()) == frame


@given(some.binary(max_size=64) | some.builds(lambda rest: bytes([PROTOCOL]) + rest, some.binary(max_size=64)))
def test_whatever_arrives_is_a_frame_or_refused(message: bytes) -> None:
    try:
        frame = frame_in(message)
    except RefusedError:
        return
    assert frame.encoded() == message


@given(frames(), some.data())
def test_a_frame_that_is_cut_short_or_changed_breaks_nothing(frame: RelayFrame, data: some.DataObject) -> None:
    whole = bytearray(frame.encoded())
    del whole[data.draw(some.integers(0, len(whole))) :]
    if whole:
        whole[data.draw(some.integers(0, len(whole) - 1))] ^= data.draw(some.integers(1, 255))
    try:
        frame = frame_in(bytes(whole))
    except RefusedError:
        return
    assert frame.encoded() == bytes(whole)


@pytest.mark.parametrize("message", ["text", None, b"", b"\x01", bytes([PROTOCOL]) + bytes(MAX_FRAME_BYTES)])
def test_what_is_no_frame_is_refused(message: bytes | str | None) -> None:
    with pytest.raises(RefusedError, match="protocol is broken"):
        frame_in(message)


def test_another_version_is_told_from_a_broken_frame() -> None:
    with pytest.raises(RefusedError, match="protocol 9 of the relay") as refused:
        frame_in(b"\x09" + bytes(20))
    assert not may_pass(refused.value)


@given(some.integers(0, 3 * CHUNK_BYTES + 1))
def test_a_body_travels_in_pieces(size: int) -> None:
    parts = list(parts_of(bytes(size), 1))
    assert b"".join(part.payload for part in parts) == bytes(size)
    assert all(0 < len(part.payload) <= CHUNK_BYTES for part in parts)
    assert all(len(part.encoded()) <= MAX_FRAME_BYTES for part in parts)


@pytest.mark.parametrize("model", [None, WorkerModel("models/tiny", 4096, 3), WorkerModel("tiny", 9, 0, "0a" * 32)])
def test_a_worker_is_heard_as_it_introduced_itself(model: WorkerModel | None) -> None:
    hello = Hello("worker-1", model)
    assert hello_of(frame_in(hello.frame().encoded())) == hello


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"worker": ""},
        {"worker": "a" * 65},
        {"worker": "a b"},
        {"worker": 7},
        {"worker": "w", "model": "tiny"},
        {"worker": "w", "model": {"source": "", "max_context": 1, "version": 0}},
        {"worker": "w", "model": {"source": "tiny", "max_context": 0, "version": 0}},
        {"worker": "w", "model": {"source": "tiny", "max_context": 1, "version": -1}},
        {"worker": "w", "model": {"source": "tiny", "max_context": "1", "version": 0}},
        {"worker": "w", "model": {"source": "tiny", "max_context": 1, "version": 0, "digest": "\n"}},
    ],
)
def test_who_does_not_say_who_it_is_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(RefusedError):
        hello_of(RelayFrame(FrameType.HELLO, 0, orjson.dumps(said)))


def test_a_refusal_arrives_with_its_reason() -> None:
    sent = RefusedError("another run is there", remedy="wait", status=409)
    heard = refusal_of(frame_in(refusal_frame(sent).encoded()).words)
    assert (heard.message, heard.remedy, heard.facts["status"]) == ("another run is there", "wait", 409)
    assert may_pass(heard)
