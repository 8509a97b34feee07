"""The likeliest tokens beside the sampled ones, packed into 8 bytes each. They are kept only so that a client that lost
its answer gets the same one again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loopwright.types.sampling import Likeliest

NONE = -1
"""The id where an engine told fewer tokens than in other places."""


def packed_likeliest(alternatives: Sequence[Likeliest]) -> bytes:
    """Equal rows of ids and logprobs."""
    if not alternatives:
        return b""
    width = max(map(len, alternatives))
    ids = np.full((len(alternatives), width), NONE, "<i4")
    logprobs = np.zeros((len(alternatives), width), "<f4")
    for row, likeliest in enumerate(alternatives):
        for place, (token, logprob) in enumerate(likeliest):
            ids[row, place], logprobs[row, place] = token, logprob
    return np.uint32(len(alternatives)).tobytes() + ids.tobytes() + logprobs.tobytes()


def likeliest_of(packed: bytes) -> tuple[Likeliest, ...]:
    """What was packed, with logprobs as 32-bit numbers."""
    if not packed:
        return ()
    rows = int(np.frombuffer(packed, "<u4", 1)[0])
    cells = (len(packed) - 4) // 8
    ids = np.frombuffer(packed, "<i4", cells, 4).reshape(rows, -1).tolist()
    logprobs = np.frombuffer(packed, "<f4", cells, 4 + 4 * cells).reshape(rows, -1).tolist()
    return tuple(
        tuple((token, odds) for token, odds in zip(*row, strict=True) if token != NONE)
        for row in zip(ids, logprobs, strict=True)
    )
