"""The plain attention plan: chunks of tokens, each causal over its own context. Prefill uses it, with a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from loopwright.models.attention import BLOCKED, masked_attention


class Context(Protocol):
    """Where a chunk's earlier keys and values are, and where its new ones go."""

    @property
    def past(self) -> int:
        """Tokens that are there already."""
        ...

    def extend(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the new keys and values [1, heads, tokens, dim]; return them after those already there."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """Packed tokens `start` to `end`, one sequence's next tokens, after whatever its context holds."""

    start: int
    end: int
    context: Context | None = None


class ChunkPlan:
    """Attention chunk by chunk. Long prompts keep the causal kernel, which skips the upper half; prompts of one length
    that begin anew are one call."""

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
    """Its number of tokens, unless it goes on behind others."""
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
    """Attention of chunks that lie one after the other, as one batch: [1, tokens, heads, dim]."""
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
    """Attention in which the last query is aligned with the last key."""
    queries, keys = q.shape[2], k.shape[2]
    if queries == keys and (window is None or window >= keys):
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
    behind = torch.arange(keys - queries, keys, device=q.device)[:, None] - torch.arange(keys, device=q.device)
    seen = behind >= 0 if window is None else (behind >= 0) & (behind < window)
    bias = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill_(~seen, BLOCKED)
    return masked_attention(q, k, v, bias, scaling)
