"""The forward pass of a Llama-like model without its modules.

Calling modules costs a small model more than its arithmetic, and a larger one still a good part of it: a rotary
embedding alone is a dozen kernels per layer. This pass reads the very parameters of the model, so there is no second
copy and every update is seen, and it overwrites what nobody needs any more. It knows no gradients: the learner, which
needs what is overwritten here, has layers of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import embedding, silu

from loopwright.models.attention import AttentionPlan
from loopwright.models.linear import Linear, Product, empty_columns
from loopwright.models.norm import ColumnNorm, RmsNorm
from loopwright.models.rotary import Angles, Turn


@dataclass(frozen=True, slots=True)
class Heads:
    """How many heads a layer has, and the size of each."""

    queries: int
    keys: int
    dim: int


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """The parts of one layer, in the order of their use."""

    attention_norm: ColumnNorm
    query: Product
    key: Product
    value: Product
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    scaling: float
    window: int | None
    output: Product
    feed_forward_norm: ColumnNorm
    gate: Product
    up: Product
    down: Product


class _Room:
    """Where a pass over so many tokens works: columns for products, and heads token by token for attention.

    Every view of it is made once, for all layers and for the next passes over as many tokens: making one costs as much
    as a small kernel. A plan too is asked with the same tensors again and again.
    """

    def __init__(self, tokens: int, heads: Heads, inner: int, like: torch.Tensor) -> None:
        self.tokens = tokens
        queries, keys, both = heads.queries, heads.keys, heads.queries + heads.keys
        self.x = empty_columns(like.shape[1], tokens, like)
        self.normed = empty_columns(like.shape[1], tokens, like)
        self.gate = empty_columns(inner, tokens, like)
        self.up = empty_columns(inner, tokens, like)
        self.projected = empty_columns((both + keys) * heads.dim, tokens, like)
        sizes = [n * heads.dim for n in (queries, keys, keys)]
        self.query, self.key, self.value = torch.split(self.projected, sizes)
        self._lying = self.projected.t().view(tokens, both + keys, heads.dim)
        self._heads = self._lying.contiguous()
        self._has_to_be_turned = self._heads is not self._lying
        self.query_heads, self.key_heads, _ = torch.split(self._heads, [queries, keys, keys], dim=1)
        self.turn = Turn(self._heads[:, :both])
        self.asked = tuple(
            x.transpose(0, 1)[None]
            for x in (self.turn.turned[:, :queries], self.turn.turned[:, queries:], self._heads[:, both:])
        )

    def by_token(self) -> None:
        """Lay out what was projected token by token: attention reads the numbers of one head side by side."""
        if self._has_to_be_turned:
            self._heads.copy_(self._lying)


class LeanForward:
    """A `PackedForward`. Whether it computes what a model does is for `models.recognise` to prove."""

    def __init__(
        self,
        table: nn.Parameter,
        angles: Angles,
        heads: Heads,
        layers: Sequence[LeanLayer],
        norm: ColumnNorm,
        head: Linear,
    ) -> None:
        self._table = table
        self._angles = angles
        self.heads = heads
        self.layers = layers
        self._norm = norm
        self._head = head
        self._room = self._room_for(0)

    @torch.inference_mode()
    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan, keep: torch.Tensor | None
    ) -> torch.Tensor:
        room = self._room = self._room if self._room.tokens == len(ids) else self._room_for(len(ids))
        x = room.x.copy_(embedding(ids, self._table).t())
        room.turn.by(*self._angles.at(positions))
        for number, layer in enumerate(self.layers):
            self._project(layer, room)
            query, key, value = room.asked
            seen = plan.attend(number, query, key, value, scaling=layer.scaling, window=layer.window)
            layer.output.add_to(x, seen.reshape(len(ids), -1).t())
            normed = layer.feed_forward_norm.into(room.normed, x)
            gate = silu(layer.gate.into(room.gate, normed), inplace=True)
            layer.down.add_to(x, gate.mul_(layer.up.into(room.up, normed)))
        kept = x if keep is None else x[:, keep]
        logits: torch.Tensor = self._head(self._norm.into(torch.empty_like(kept), kept).t())
        return logits

    def _project(self, layer: LeanLayer, room: _Room) -> None:
        """Queries, keys and values, turned by their positions."""
        normed = layer.attention_norm.into(room.normed, room.x)
        layer.query.into(room.query, normed)
        layer.key.into(room.key, normed)
        layer.value.into(room.value, normed)
        room.by_token()
        if layer.query_norm is not None and layer.key_norm is not None:
            layer.query_norm.into(room.query_heads, room.query_heads)
            layer.key_norm.into(room.key_heads, room.key_heads)
        room.turn.turn()

    def _room_for(self, tokens: int) -> _Room:
        return _Room(tokens, self.heads, len(self.layers[0].gate.weight), self._table)
