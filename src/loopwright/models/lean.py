"""The forward pass of a Llama-like model without its modules.

In a small model, calling modules takes longer than the arithmetic; in a larger one it still takes a large part of the
time. A rotary embedding alone is a dozen kernels per layer. This pass reads the model's own parameters, so it sees
every update. It overwrites values that are no longer needed, so it has no gradients. The learner needs those values,
and has its own layers (`learn.layers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import silu

from loopwright.models.attention import AttentionPlan
from loopwright.models.linear import Linear
from loopwright.models.native.library import Library
from loopwright.models.native.step import NativeStep, serves
from loopwright.models.norm import ColumnNorm, RmsNorm
from loopwright.models.product import OutputHead, Product
from loopwright.models.rotary import Angles
from loopwright.models.workspace import Sizes, Workspace, Workspaces


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """The parts of one layer, in the order of their use."""

    attention_norm: ColumnNorm
    projection: Product
    """The projection to queries, keys and values."""
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    scaling: float
    window: int | None
    output: Product
    feed_forward_norm: ColumnNorm
    gate_and_up: Product
    down: Product

    @property
    def linears(self) -> list[Linear]:
        products = self.projection, self.output, self.gate_and_up, self.down
        return [linear for product in products for linear in product.layers]


@dataclass(frozen=True, slots=True)
class LeanModel:
    """The parts of a model."""

    table: nn.Parameter
    angles: Angles
    sizes: Sizes
    layers: Sequence[LeanLayer]
    norm: ColumnNorm
    head: OutputHead


class LeanForward:
    """A `PackedForward`. `models.recognise` proves whether it computes the same as a model."""

    def __init__(self, model: LeanModel, library: Library | None = None) -> None:
        """With a `library` that supports this model, it decodes with native steps."""
        self.model = model
        self._workspaces = Workspaces(model.sizes, model.table.detach())
        self._library = library if library is not None and serves(model, library) else None

    @torch.inference_mode()
    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan, keep: torch.Tensor | None
    ) -> torch.Tensor:
        model, space = self.model, self._workspaces.of(len(ids))
        x = space.x.copy_(model.table.index_select(0, ids).t())
        model.angles.into(space.turn.angles, positions)
        for number, layer in enumerate(model.layers):
            self._project(layer, space)
            query, key, value = space.asked
            seen = plan.attend(number, query, key, value, scaling=layer.scaling, window=layer.window)
            layer.output.add_to(x, seen.reshape(len(ids), -1).t())
            normed = layer.feed_forward_norm.into(space.normed, x)
            layer.gate_and_up.into((space.gate, space.up), normed)
            layer.down.add_to(x, torch.mul(silu(space.gate, inplace=True), space.up, out=space.gate))
        kept = x if keep is None else x[:, keep]
        return model.head(model.norm.into(torch.empty_like(kept), kept))

    def native(self) -> NativeStep | None:
        return None if self._library is None else NativeStep(self.model, self._library)

    def _project(self, layer: LeanLayer, space: Workspace) -> None:
        """Compute queries, keys and values, with the rotary embedding applied."""
        layer.projection.into(space.projected, layer.attention_norm.into(space.normed, space.x))
        space.by_token()
        if layer.query_norm is not None and layer.key_norm is not None:
            layer.query_norm.into(space.query_heads, space.query_heads)
            layer.key_norm.into(space.key_heads, space.key_heads)
        space.turn.turn()
