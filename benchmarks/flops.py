"""The linear layers of a decoder-only model, from its config: their shapes and what a token costs in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Matrix = tuple[int, int]
"""Inputs and outputs of a linear layer."""


@dataclass(frozen=True, slots=True)
class Layers:
    """`body` is every linear layer of the blocks, in order; `head` turns the last state into logits."""

    body: tuple[Matrix, ...]
    head: Matrix

    @property
    def body_flops(self) -> int:
        """Forward, per token."""
        return sum(2 * inputs * outputs for inputs, outputs in self.body)

    @property
    def head_flops(self) -> int:
        return 2 * self.head[0] * self.head[1]


def layers_of(config: Mapping[str, Any]) -> Layers:
    """From a `config.json` of the Llama kind: grouped-query attention and a gated MLP."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    dim = config.get("head_dim") or hidden // heads
    queries, keys = heads * dim, config["num_key_value_heads"] * dim
    attention = ((hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden))
    mlp = ((hidden, inner), (hidden, inner), (inner, hidden))
    return Layers((*attention, *mlp) * config["num_hidden_layers"], (hidden, config["vocab_size"]))
