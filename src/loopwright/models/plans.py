"""The plain attention plan: chunks of tokens, each causal over its own context. Prefill uses it, with a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from loopwright.models.attention import BLOCKED, masked_attention


class Context(Protocol):
    """Where a chunk's earlier keys and values are, and where its new ones go."""

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
    """Attention chunk by chunk. Long prompts keep the causal kernel, which skips the upper half."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks
        self.layers_seen: set[int] = set()

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
        for chunk in self.chunks:
            q, k, v = (x[:, :, chunk.start : chunk.end] for x in (query, key, value))
            if chunk.context is not None:
                k, v = chunk.context.extend(layer, k, v)
            outputs.append(_causal(q, k, v, scaling, window))
        return torch.cat(outputs, dim=2).transpose(1, 2)


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, window: int | None) -> torch.Tensor:
    """Attention in which the last query is aligned with the last key."""
    queries, keys = q.shape[2], k.shape[2]
    if queries == keys and (window is None or window >= keys):
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
    behind = torch.arange(keys - queries, keys, device=q.device)[:, None] - torch.arange(keys, device=q.device)
    seen = behind >= 0 if window is None else (behind >= 0) & (behind < window)
    bias = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill_(~seen, BLOCKED)
    return masked_attention(q, k, v, bias, scaling)
