"""The plain attention plan: chunks of tokens, each with causal attention over its own context. Prefill uses it with a
cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch

from loopwright.models.attention import BLOCKED, fused_attention, masked_attention


class Context(Protocol):
    """Where a chunk's earlier keys and values are, and where its new ones go."""

    @property
    def past(self) -> int:
        """How many tokens it already holds."""
        ...

    def extend(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values [1, heads, tokens, dim], and return all of them, the earlier ones first."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """Packed tokens `start` to `end`: the next tokens of one sequence, after those in its context."""

    start: int
    end: int
    context: Context | None = None


class ChunkPlan:
    """Attention chunk by chunk. Long prompts use the causal kernel, which skips the upper half. New prompts of equal
    length are computed in one call."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks
        self.layers_seen: set[int] = set()
        self._alike = [list(run) for _, run in groupby(chunks, key=_length_if_new)]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        self.layers_seen.add(layer)
        outputs = []
        for run in self._alike:
            if len(run) > 1 and _length_if_new(run[0]) is not None:
                outputs.append(_together(run, layer, query, key, value, scaling, window))
                continue
            for chunk in run:
                q, k, v = (x[:, :, chunk.start : chunk.end] for x in (query, key, value))
                if chunk.context is not None:
                    k, v = chunk.context.extend(layer, k, v)
                outputs.append(_causal(q, k, v, scaling, window).transpose(1, 2))
        return torch.cat(outputs, dim=1)


def _length_if_new(chunk: Chunk) -> int | None:
    """The chunk's number of tokens, or None if its context already holds some."""
    goes_on = chunk.context is not None and chunk.context.past
    return None if goes_on else chunk.end - chunk.start


def _together(
    run: Sequence[Chunk],
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    """Attention of neighbouring chunks, computed as one batch: [1, tokens, heads, dim]."""
    start, end, count = run[0].start, run[-1].end, len(run)
    q, k, v = (
        x[0, :, start:end].reshape(x.shape[1], count, -1, x.shape[-1]).transpose(0, 1) for x in (query, key, value)
    )
    for i, chunk in enumerate(run):
        if chunk.context is not None:
            chunk.context.extend(layer, k[i : i + 1], v[i : i + 1])
    output = _causal(q, k, v, scaling, window).transpose(1, 2)
    return output.reshape(1, end - start, *output.shape[2:])


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, window: int | None) -> torch.Tensor:
    """Causal attention in which the last query is aligned with the last key."""
    queries, keys = q.shape[2], k.shape[2]
    if queries == keys and (window is None or window >= keys):
        return fused_attention(q, k, v, scaling)
    at, place = torch.arange(keys - queries, keys, device=q.device)[:, None], torch.arange(keys, device=q.device)
    # No matrix of differences: for a long prompt, its integers would take more memory than the mask.
    seen = place <= at if window is None else (place <= at) & (place > at - window)
    bias = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill_(~seen, BLOCKED)
    return masked_attention(q, k, v, bias, scaling)
