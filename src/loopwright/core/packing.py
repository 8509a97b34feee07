"""Packing plans: which tokens go into which forward pass, each shared prefix only once.

The chains of a group share their prompt. A packed row holds that prefix once and then each chain's own rest, with
positions that restart after the prefix; attention lets a rest see the prefix and itself. The result is, token for
token, what separate rows would have computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Packed:
    """One group of chains behind one prefix. `chains` are indices into the caller's list."""

    prefix: int
    chains: tuple[int, ...]
    rests: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens that a forward pass over this row computes."""
        return self.prefix + sum(self.rests)


def shared_prefix(chains: Sequence[npt.NDArray[np.int32]], masks: Sequence[npt.NDArray[np.bool_]]) -> int:
    """The longest prefix that all chains share and that holds no sampled token.

    It ends before the last token ahead of the first sampled one, because that token's logits differ in what they
    are trained on: its copy stays with each rest.
    """
    limit = min(_context_length(mask) for mask in masks) - 1
    if limit <= 0:
        return 0
    first = chains[0][:limit]
    length = limit
    for ids in chains[1:]:
        differs = np.nonzero(ids[:length] != first[:length])[0]
        if len(differs):
            length = int(differs[0])
    return length


def _context_length(mask: npt.NDArray[np.bool_]) -> int:
    return int(mask.argmax()) if mask.any() else len(mask)


def pack(
    groups: Sequence[Sequence[int]],
    ids: Sequence[npt.NDArray[np.int32]],
    masks: Sequence[npt.NDArray[np.bool_]],
) -> list[Packed]:
    """One row per group; `groups` lists each group's chains as indices into `ids` and `masks`.

    Chains of a group that do not start alike (another tool set, a rewritten history) get rows of their own.
    """
    rows: list[Packed] = []
    for members in groups:
        by_start = sorted(members, key=lambda i: (_start(ids[i]), i))
        for _, alike in groupby(by_start, key=lambda i: _start(ids[i])):
            chains = tuple(alike)
            prefix = shared_prefix([ids[i] for i in chains], [masks[i] for i in chains])
            rows.append(Packed(prefix, chains, tuple(len(ids[i]) - prefix for i in chains)))
    return rows


def _start(ids: npt.NDArray[np.int32]) -> bytes:
    """Chains of one prompt agree in their first tokens; chains of different prompts soon differ."""
    return ids[:SAME_PROMPT].tobytes()


SAME_PROMPT = 16


def micro_batches(rows: Sequence[Packed], max_tokens: int) -> list[list[Packed]]:
    """Rows in order, cut so that each micro-batch computes at most `max_tokens`; a larger row stands alone."""
    batches: list[list[Packed]] = []
    room = 0
    for row in rows:
        if not batches or row.tokens > room:
            batches.append([])
            room = max_tokens
        batches[-1].append(row)
        room -= row.tokens
    return batches
