"""Encodes values as bytes and text for storage, and decodes them. The decoded value equals the encoded one, or decoding
raises.

Token chains are binary, because they are most of a run's bytes. A blob is one format byte, the chains, and a checksum,
so that damage is reported and never trained on. Each chain is a header (its start, its length) and its four streams in
little-endian order: ids of two bytes if all of them fit, one bit of mask per token, and for sampled tokens only their
logprobs and, as runs, their versions. If tokens of it are constrained, their spans follow. All other values are JSON,
which a person can read.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from loopwright.errors import ChainError, DataError, RunError
from loopwright.types import ChainStart, Failed, FailureCause, Message, Reward, Scored, Task, TokenChain, Unscored
from loopwright.types.spans import Spans

FORMAT = 2

_HEADER = struct.Struct("<BI")
"""Used three times: for a chain's start and length, for the bytes of an id and the number of version runs, and for the
blob's format and number of chains."""
_RUN = struct.Struct("<ii")
"""The number of tokens, and their version."""
_CHECKSUM = struct.Struct("<I")
_START_CODES = {
    ChainStart.FIRST: 0,
    ChainStart.REWRITTEN: 1,
    ChainStart.BRANCH: 2,
    ChainStart.SEPARATE: 3,
    ChainStart.COMPACTED: 4,
    ChainStart.TOOLS: 5,
    ChainStart.TEMPLATE: 6,
}
_NOT_TRAINED = 0x80
"""Added to the code of the start if the chain is only recorded, not trained."""
_CONSTRAINED = 0x40
"""Added to the code of the start if spans of constrained tokens follow."""
_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
"""It writes ASCII only: byte-level tokenizers can yield lone surrogates. UTF-8 cannot hold them, but an escape can."""
_ID_TYPES = {2: "<u2", 4: "<i4"}
_STARTS = {code: start for start, code in _START_CODES.items()}


def encode_chains(chains: Sequence[TokenChain]) -> bytes:
    """The chains of one rollout as one blob."""
    body = _HEADER.pack(FORMAT, len(chains)) + b"".join(_encode_chain(chain) for chain in chains)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def _encode_chain(chain: TokenChain) -> bytes:
    # Read as unsigned numbers, negative ids are large.
    width = 2 if len(chain) and np.maximum.reduce(chain.ids.view(np.uint32)) < 2**16 else 4
    runs = _runs(chain.versions[chain.mask])
    return b"".join(
        (
            _HEADER.pack(_code(chain), len(chain)),
            _HEADER.pack(width, len(runs)),
            chain.ids.astype(_ID_TYPES[width]).tobytes(),
            np.packbits(chain.mask).tobytes(),
            chain.logprobs[chain.mask].astype("<f4").tobytes(),
            b"".join(_RUN.pack(*run) for run in runs),
            _encode_spans(chain.constrained),
        )
    )


def _code(chain: TokenChain) -> int:
    flags = (0 if chain.trained else _NOT_TRAINED) | (_CONSTRAINED if chain.constrained else 0)
    return _START_CODES[chain.start] | flags


def _encode_spans(spans: Spans) -> bytes:
    return _HEADER.pack(0, len(spans)) + b"".join(_RUN.pack(*span) for span in spans) if spans else b""


def _runs(versions: npt.NDArray[np.int32]) -> list[tuple[int, int]]:
    """Runs of equal versions, as (length, version). There are rarely more than five."""
    if not len(versions):
        return []
    changed = versions[1:] != versions[:-1]
    if not np.count_nonzero(changed):
        return [(len(versions), int(versions[0]))]
    edges = [0, *(changed.nonzero()[0] + 1).tolist(), len(versions)]
    return [(end - start, int(versions[start])) for start, end in pairwise(edges)]


def decode_chains(blob: bytes) -> tuple[TokenChain, ...]:
    """The chains that `encode_chains` was given. A damaged blob raises ChainError."""
    if len(blob) < _HEADER.size + _CHECKSUM.size:
        raise _damaged(f"{len(blob)} bytes are too few")
    body, (checksum,) = blob[: -_CHECKSUM.size], _CHECKSUM.unpack(blob[-_CHECKSUM.size :])
    if blob[0] != FORMAT:
        raise _damaged(f"format {blob[0]}, expected {FORMAT}")
    if zlib.crc32(body) != checksum:
        raise _damaged("the checksum does not match")
    cursor = _Cursor(body)
    _, count = cursor.header()
    chains = tuple(_decode_chain(cursor) for _ in range(count))
    if cursor.position != len(body):
        raise _damaged(f"{len(body) - cursor.position} bytes are left over")
    return chains


def _decode_chain(cursor: _Cursor) -> TokenChain:
    code, length = cursor.header()
    start = _STARTS.get(code & ~_NOT_TRAINED & ~_CONSTRAINED)
    if start is None:
        raise _damaged(f"unknown chain start {code}")
    width, runs = cursor.header()
    if width not in _ID_TYPES:
        raise _damaged(f"ids of {width} bytes")
    ids = cursor.array(_ID_TYPES[width], length)
    mask = np.unpackbits(cursor.array("u1", (length + 7) // 8), count=length).astype(np.bool_)
    logprobs, versions = np.zeros(length, np.float32), np.full(length, -1, np.int32)
    sampled = int(mask.sum())
    logprobs[mask] = cursor.array("<f4", sampled)
    lengths, values = cursor.array("<i4", 2 * runs).reshape(runs, 2).T
    if (lengths < 0).any() or lengths.sum() != sampled:
        raise _damaged("its versions are not those of its sampled tokens")
    versions[mask] = np.repeat(values, lengths)
    constrained = _decode_spans(cursor) if code & _CONSTRAINED else ()
    return TokenChain(ids, mask, logprobs, versions, start, not code & _NOT_TRAINED, constrained)


def _decode_spans(cursor: _Cursor) -> Spans:
    _, count = cursor.header()
    return tuple((begin, end) for begin, end in cursor.array("<i4", 2 * count).reshape(count, 2).tolist())


class _Cursor:
    """Reads a blob from front to back, and never past its end."""

    def __init__(self, body: bytes) -> None:
        self.position = 0
        self._body = body

    def header(self) -> tuple[int, int]:
        code, count = _HEADER.unpack(self._take(_HEADER.size))
        return code, count

    def array(self, dtype: str, count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self._take(np.dtype(dtype).itemsize * count), dtype)

    def _take(self, size: int) -> bytes:
        piece = self._body[self.position : self.position + size]
        if len(piece) < size:
            raise _damaged("it ends in the middle of a chain")
        self.position += size
        return piece


def _damaged(why: str) -> ChainError:
    return ChainError(
        f"stored token chains cannot be read: {why}",
        remedy="the database is damaged or of another version; restore a copy of it, or start over with --fresh",
    )


def encode_task(task: Task) -> str:
    return to_json(
        {
            "id": task.id,
            "messages": as_dicts(task.messages),
            "truth": task.truth,
            "tools": as_dicts(task.tools),
            "metadata": dict(task.metadata),
        },
        f"task {task.id!r}",
    )


def decode_task(text: str) -> Task:
    fields = from_json(text, "task")
    return Task(
        fields["id"], tuple(fields["messages"]), fields["truth"], tuple(fields["tools"]), metadata=fields["metadata"]
    )


def encode_reward(reward: Reward) -> str:
    match reward:
        case Scored(value, parts, answer, evidence):
            fields: dict[str, Any] = {"kind": "scored", "value": value, "parts": dict(parts), "answer": answer}
            if evidence is not None:
                fields["evidence"] = evidence
        case Failed(cause, error, detail):
            fields = {"kind": "failed", "cause": cause.value, "error": error, "detail": detail}
        case Unscored():
            fields = {"kind": "unscored"}
    return to_json(fields, "a reward")


def decode_reward(text: str) -> Reward:
    fields = from_json(text, "reward")
    match fields:
        case {"kind": "scored", "value": int() | float() as value, "parts": parts, "answer": answer}:
            return Scored(value, parts, answer, fields.get("evidence"))
        case {"kind": "failed", "cause": cause, "error": error, "detail": detail} if cause in tuple(FailureCause):
            return Failed(FailureCause(cause), error, detail)
        case {"kind": "unscored"}:
            return Unscored()
        case _:
            raise unreadable("reward", text)


def as_dicts(mappings: Iterable[Message]) -> list[dict[str, Any]]:
    return [dict(mapping) for mapping in mappings]


def to_json(value: Any, what: str) -> str:
    try:
        return _JSON.encode(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{what} holds a value that cannot be stored as JSON: {error}",
            remedy="use strings, finite numbers, booleans, None, lists and dicts",
        ) from error


def from_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unreadable(what, text) from error


def unreadable(what: str, text: str) -> RunError:
    return RunError(
        f"a stored {what} cannot be read: {text[:80]!r}",
        remedy="the database is damaged or of another version; restore a copy of it, or start over with --fresh",
    )
