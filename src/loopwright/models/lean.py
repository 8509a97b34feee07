"""The forward pass of a Llama-like model without its modules.

Calling modules costs a small model more than its arithmetic, and a larger one still a good part of it: a rotary
embedding alone is a dozen kernels per layer. This pass reads the very parameters of the model, or what was prepacked
of them, and overwrites what nobody needs any more. It knows no gradients: the learner, which needs what is overwritten
here, has layers of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import silu

from loopwright.models.attention import AttentionPlan
from loopwright.models.norm import ColumnNorm, RmsNorm
from loopwright.models.product import Head, Product
from loopwright.models.room import Heads, Room, Rooms
from loopwright.models.rotary import Angles


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """The parts of one layer, in the order of their use."""

    attention_norm: ColumnNorm
    projection: Product
    """To queries, keys and values."""
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    scaling: float
    window: int | None
    output: Product
    feed_forward_norm: ColumnNorm
    gate_and_up: Product
    down: Product

    @property
    def products(self) -> tuple[Product, ...]:
        return self.projection, self.output, self.gate_and_up, self.down


class LeanForward:
    """A `PackedForward`. Whether it computes what a model does is for `models.recognise` to prove."""

    def __init__(
        self,
        table: nn.Parameter,
        angles: Angles,
        rooms: Rooms,
        layers: Sequence[LeanLayer],
        norm: ColumnNorm,
        head: Head,
    ) -> None:
        self._table = table
        self._angles = angles
        self._rooms = rooms
        self.layers = layers
        self._norm = norm
        self._head = head

    @property
    def heads(self) -> Heads:
        return self._rooms.heads

    def outdate(self) -> None:
        self._head.outdate()
        for layer in self.layers:
            for product in layer.products:
                product.outdate()

    @torch.inference_mode()
    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan, keep: torch.Tensor | None
    ) -> torch.Tensor:
        room = self._rooms.of(len(ids))
        x = room.x.copy_(self._table.index_select(0, ids).t())
        self._angles.into(room.turn.angles, positions)
        for number, layer in enumerate(self.layers):
            self._project(layer, room)
            query, key, value = room.asked
            seen = plan.attend(number, query, key, value, scaling=layer.scaling, window=layer.window)
            layer.output.add_to(x, seen.reshape(len(ids), -1).t())
            normed = layer.feed_forward_norm.into(room.normed, x)
            gate, up = layer.gate_and_up.near(room.gate_and_up, normed)
            layer.down.add_to(x, torch.mul(silu(gate, inplace=True), up, out=room.gated))
        kept = x if keep is None else x[:, keep]
        return self._head(self._norm.into(torch.empty_like(kept), kept))

    def _project(self, layer: LeanLayer, room: Room) -> None:
        """Queries, keys and values, turned by their positions."""
        layer.projection.into(room.projected, layer.attention_norm.into(room.normed, room.x))
        room.by_token()
        if layer.query_norm is not None and layer.key_norm is not None:
            layer.query_norm.into(room.query_heads, room.query_heads)
            layer.key_norm.into(room.key_heads, room.key_heads)
        room.turn.turn()
