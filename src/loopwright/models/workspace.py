"""The memory in which a lean forward pass works.

Every view is made once, for all layers and for all later passes with the same number of tokens: making a view costs as
much as a small kernel. So a plan also gets the same tensors in every call. Only one pass runs at a time, so passes of
all sizes share the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from loopwright.models.product import FEATURES_FIRST
from loopwright.models.rotary import Rotation

KEPT = 256
"""The number of tokens of the largest workspace that is kept. Larger passes consist of prompts, and rarely have the
same size twice."""


@dataclass(frozen=True, slots=True)
class Heads:
    """How many heads a layer has, and the size of each."""

    queries: int
    keys: int
    dim: int


class Workspace:
    """The views for a fixed number of tokens: columns for matrix products, and heads token by token for attention."""

    def __init__(
        self, tokens: int, heads: Heads, sizes: Sequence[int], memory: torch.Tensor, *, features_first: bool
    ) -> None:
        """`memory` has room for all `sizes`, which count numbers per token."""
        parts = torch.split(memory[: tokens * sum(sizes)], [tokens * size for size in sizes])
        columns = [x.view(-1, tokens) if features_first else x.view(tokens, -1).t() for x in parts[:5]]
        self.x, self.normed, self.gate, self.up, projected = columns
        queries, keys, both = heads.queries, heads.keys, heads.queries + heads.keys
        self.projected = torch.split(projected, [n * heads.dim for n in (queries, keys, keys)])
        self._lying = projected.t().view(tokens, -1, heads.dim)
        self._has_to_be_turned = not self._lying.is_contiguous()
        self._heads = parts[5].view(self._lying.shape) if self._has_to_be_turned else self._lying
        self.query_heads, self.key_heads, values = torch.split(self._heads, [queries, keys, keys], dim=1)
        turned = parts[6].view(tokens, both, heads.dim)
        self.turn = Rotation(self._heads[:, :both], turned, parts[7].view(tokens, 1, -1))
        self.asked = tuple(x.transpose(0, 1)[None] for x in (*torch.split(turned, [queries, keys], dim=1), values))

    def by_token(self) -> None:
        """Copy the projected values into token order: attention reads the numbers of one head as neighbours."""
        if self._has_to_be_turned:
            self._heads.copy_(self._lying)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a model: its heads, its hidden features, and the inner features of a feed-forward layer."""

    heads: Heads
    hidden: int
    inner: int

    @property
    def per_token(self) -> tuple[int, ...]:
        """How many numbers per token each part of a workspace has."""
        heads = self.heads
        projected, turned = (heads.queries + 2 * heads.keys) * heads.dim, (heads.queries + heads.keys) * heads.dim
        return self.hidden, self.hidden, self.inner, self.inner, projected, projected, turned, 2 * heads.dim


class Workspaces:
    """The workspaces of one forward pass."""

    def __init__(self, sizes: Sizes, like: torch.Tensor) -> None:
        self._sizes = sizes
        self._per_token = sum(sizes.per_token)
        self._like = like
        self._memory = like.new_empty(0)
        self._kept: dict[int, Workspace] = {}

    def of(self, tokens: int) -> Workspace:
        """The workspace for this number of tokens. Its contents are valid until the next call."""
        if (space := self._kept.get(tokens)) is not None:
            return space
        if tokens > KEPT:
            return self._made(tokens, self._memory_for(tokens))
        if len(self._memory) < tokens * self._per_token:
            self._memory, self._kept = self._memory_for(1 << (tokens - 1).bit_length()), {}
        space = self._kept[tokens] = self._made(tokens, self._memory)
        return space

    def _made(self, tokens: int, memory: torch.Tensor) -> Workspace:
        sizes, features_first = self._sizes, tokens in FEATURES_FIRST
        return Workspace(tokens, sizes.heads, sizes.per_token, memory, features_first=features_first)

    def _memory_for(self, tokens: int) -> torch.Tensor:
        return self._like.new_empty(tokens * self._per_token)
