"""The forward pass of a Llama-like model without its modules.

Calling modules costs a small model more than its arithmetic, and a larger one still a good part of it: a rotary
embedding alone is a dozen kernels per layer. This pass reads the very parameters of the model, so there is no second
copy and every update is seen, and it overwrites what nobody needs any more. It knows no gradients: the learner keeps
the model's own way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding, silu

from loopwright.models.attention import AttentionPlan
from loopwright.models.linear import Linear, empty_rows
from loopwright.models.norm import RmsNorm


@dataclass(frozen=True, slots=True)
class Heads:
    """How many heads a layer has, and the size of each."""

    queries: int
    keys: int
    dim: int


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """The parts of one layer, in the order of their use."""

    attention_norm: RmsNorm
    query: Linear
    key: Linear
    value: Linear
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    scaling: float
    window: int | None
    output: Linear
    feed_forward_norm: RmsNorm
    gate: Linear
    up: Linear
    down: Linear


class _Room:
    """Where one layer after the other writes what only it needs."""

    def __init__(self, x: torch.Tensor, heads: Heads, inner: int) -> None:
        tokens, both = len(x), heads.queries + heads.keys
        self.normed = empty_rows(tokens, x.shape[1], x)
        self.projected = empty_rows(tokens, (both + heads.keys) * heads.dim, x)
        self.rotated = x.new_empty((tokens, both, heads.dim))
        self.gate = empty_rows(tokens, inner, x)
        self.up = empty_rows(tokens, inner, x)


@dataclass(frozen=True, slots=True)
class LeanForward:
    """A `PackedForward`. Whether it computes what a model does is for `models.recognise` to prove."""

    table: nn.Parameter
    rotary: Any
    heads: Heads
    layers: Sequence[LeanLayer]
    norm: RmsNorm
    head: Linear

    @torch.no_grad()
    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan, keep: torch.Tensor | None
    ) -> torch.Tensor:
        embedded = embedding(ids, self.table)
        x = empty_rows(len(embedded), embedded.shape[1], embedded).copy_(embedded)
        cos, sin = (angle[0, :, None] for angle in self.rotary(x, positions[None]))
        room = _Room(x, self.heads, len(self.layers[0].gate.weight))
        for number, layer in enumerate(self.layers):
            query, key, value = self._project(layer, x, cos, sin, room)
            seen = plan.attend(number, query, key, value, scaling=layer.scaling, window=layer.window)
            layer.output.add_to(x, seen.reshape(len(x), -1))
            normed = layer.feed_forward_norm.into(room.normed, x)
            gate = silu(layer.gate.into(room.gate, normed), inplace=True)
            layer.down.add_to(x, gate.mul_(layer.up.into(room.up, normed)))
        logits: torch.Tensor = self.head(self.norm(x if keep is None else x[keep]))
        return logits

    def _project(
        self, layer: LeanLayer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, room: _Room
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values as a plan wants them: [1, heads, tokens, dim]."""
        queries, both, dim = self.heads.queries, self.heads.queries + self.heads.keys, self.heads.dim
        normed = layer.attention_norm.into(room.normed, x)
        layer.query.into(room.projected[:, : queries * dim], normed)
        layer.key.into(room.projected[:, queries * dim : both * dim], normed)
        layer.value.into(room.projected[:, both * dim :], normed)
        # Token by token from here on: attention kernels read the numbers of one head side by side.
        heads = room.projected.contiguous().view(len(x), -1, dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            layer.query_norm.into(heads[:, :queries], heads[:, :queries])
            layer.key_norm.into(heads[:, queries:both], heads[:, queries:both])
        rotated = _rotate(heads[:, :both], cos, sin, room.rotated)
        return _for_plan(rotated[:, :queries]), _for_plan(rotated[:, queries:]), _for_plan(heads[:, both:])


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Queries and keys turned by their positions: pairs are one half of the head apart."""
    half = x.shape[-1] // 2
    torch.mul(x, cos, out=out)
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out


def _for_plan(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1)[None]
