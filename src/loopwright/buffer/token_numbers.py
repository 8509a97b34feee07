"""What a train step computed of the tokens of one rollout, as one blob: for each trained token its logprob before the
step minus the one that it was sampled with, and its share of the loss.

Both are float16, because they are looked at and never computed with again. The shares of a chain are stored as parts of
its largest one, which is a float32: alone they are often smaller than what float16 can hold. Which tokens were trained
is one bit per token, from the first trained one on. A checksum ends the blob.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np

from loopwright.errors import ChainError
from loopwright.types import Rollout, TrainedRollout
from loopwright.types.tokens import FloatArray, IntArray

FORMAT = 1
LARGEST = 65504.0
"""The largest number of float16."""

_HEAD = struct.Struct("<BI")
"""The format, and the number of chains."""
_CHAIN = struct.Struct("<IIIIf")
"""The chain's place in the episode, its trained tokens, the first of them, the bits from there on, and the largest
share of the loss."""
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True, eq=False)
class ChainNumbers:
    """The trained tokens of one chain: their `positions` in it, and the numbers of each."""

    index: int
    positions: IntArray
    mismatch: FloatArray
    losses: FloatArray


def encode_numbers(trained: TrainedRollout, rollout: Rollout) -> bytes:
    """The numbers of `trained`; `rollout` has the logprobs that its tokens were sampled with."""
    chains = rollout.episode.chains if rollout.episode else ()
    pieces = [_HEAD.pack(FORMAT, len(trained.chains))]
    for one in trained.chains:
        first = int(one.positions[0]) if len(one.positions) else 0
        bits = np.zeros(int(one.positions[-1]) - first + 1 if len(one.positions) else 0, np.bool_)
        bits[one.positions - first] = True
        mismatch = one.old_logprobs - chains[one.index].logprobs[one.positions]
        largest = float(np.maximum.reduce(np.abs(one.losses), initial=0.0))
        scale = largest if 0 < largest < np.inf else 1.0
        pieces += (
            _CHAIN.pack(one.index, len(one.positions), first, len(bits), scale),
            np.packbits(bits).tobytes(),
            _as_half(mismatch),
            _as_half(one.losses / np.float32(scale)),
        )
    body = b"".join(pieces)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def _as_half(values: FloatArray) -> bytes:
    return np.clip(values, -LARGEST, LARGEST).astype("<f2").tobytes()


def decode_numbers(blob: bytes) -> tuple[ChainNumbers, ...]:
    """What `encode_numbers` was given, rounded. A damaged blob raises ChainError."""
    if len(blob) < _HEAD.size + _CHECKSUM.size:
        raise _damaged(f"{len(blob)} bytes are too few")
    body, (checksum,) = blob[: -_CHECKSUM.size], _CHECKSUM.unpack(blob[-_CHECKSUM.size :])
    found, count = _HEAD.unpack_from(body)
    if found != FORMAT:
        raise _damaged(f"format {found}, expected {FORMAT}")
    if zlib.crc32(body) != checksum:
        raise _damaged("the checksum does not match")
    chains, place = list[ChainNumbers](), _HEAD.size
    for _ in range(count):
        chain, place = _decode_chain(body, place)
        chains.append(chain)
    return tuple(chains)


def _decode_chain(body: bytes, place: int) -> tuple[ChainNumbers, int]:
    if place + _CHAIN.size > len(body):
        raise _damaged("it ends in the middle of a chain")
    index, tokens, first, bits, scale = _CHAIN.unpack_from(body, place)
    place += _CHAIN.size
    flags = -(-bits // 8)
    end = place + flags + 4 * tokens
    if end > len(body):
        raise _damaged("it ends in the middle of a chain")
    mask = np.unpackbits(np.frombuffer(body, np.uint8, flags, place), count=bits)
    positions = (mask.nonzero()[0] + first).astype(np.int32)
    if len(positions) != tokens:
        raise _damaged("its tokens are not as many as it says")
    halves = np.frombuffer(body, "<f2", 2 * tokens, place + flags).astype(np.float32).reshape(2, tokens)
    return ChainNumbers(index, positions, halves[0], halves[1] * np.float32(scale)), end


def loss_terms(trained: TrainedRollout) -> float:
    """The sum of the absolute shares of the loss of all its tokens."""
    return sum(float(np.abs(one.losses).sum(dtype=np.float64)) for one in trained.chains)


def _damaged(why: str) -> ChainError:
    return ChainError(
        f"stored numbers of trained tokens cannot be read: {why}",
        remedy="the database is damaged or of another version; the tokens themselves are stored apart",
    )
