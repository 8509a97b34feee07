"""Which models the lean forward serves: those for which it computes the same.

Architectures look alike and hide surprises (layers without rotary embedding, factors, another activation), so likeness
is only where we begin. A model is served if the parts that we know are all it has, down to the last parameter, and if
every layer's queries, keys and values come out the same, as well as the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from loopwright.models.forward import ModuleForward, PackedForward
from loopwright.models.lean import LeanForward, LeanLayer, LeanModel
from loopwright.models.linear import Linear
from loopwright.models.native.cells import Cells
from loopwright.models.native.library import Library
from loopwright.models.native.step import NativeStep
from loopwright.models.norm import ColumnNorm, RmsNorm
from loopwright.models.plans import Chunk, ChunkPlan
from loopwright.models.product import Head, Product
from loopwright.models.rotary import Angles
from loopwright.models.workspace import Heads, Sizes

BASE = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
FEED_FORWARD = {"gate_proj", "up_proj", "down_proj", "act_fn"}
KNOWN = {Linear, RmsNorm, nn.Embedding}
"""The only modules that may have parameters of their own. The first two exist on a CPU and in float32 alone."""

TOKENS = 12
SAME = 1e-3
"""How far a number may be off, in shares of the largest of its kind."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a layer hands to attention."""

    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    scaling: float
    window: int | None


class _Recording:
    """A plan that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._plan = ChunkPlan([Chunk(0, TOKENS)])

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
        # Cloned: whoever asks may overwrite them in its next layer.
        self.asked.append(Asked((query.clone(), key.clone(), value.clone()), scaling, window))
        return self._plan.attend(layer, query, key, value, scaling=scaling, window=window)


def fastest_forward(model: Any, library: Library | None = None) -> PackedForward:
    """The lean forward if it computes what the model does, else the model's own. It decodes by the `library` if that
    computes the same too."""
    own = ModuleForward(model)
    theirs, logits = _probe(own, model)
    parts = _parts(model, theirs)
    if parts is None:
        return own
    lean = LeanForward(parts, library)
    mine, same_logits = _probe(lean, model)
    pairs = [(same_logits, logits)]
    for one, other in zip(mine, theirs, strict=True):
        pairs += zip(one.tensors, other.tensors, strict=True)
    if not all(_is_same(one, other) for one, other in pairs):
        return own
    native = lean.native()
    if native is None or _is_same(_last_of_probe(native, model, mine), logits[-1:]):
        return lean
    return LeanForward(parts)


def _last_of_probe(native: NativeStep, model: Any, asked: list[Asked]) -> torch.Tensor:
    """The logits after the probe's last token, decoded behind the others: half of them a shared prompt."""
    half, capacity = TOKENS // 2, 32
    arenas: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
    for one in asked:
        _, key, value = one.tensors
        parts = slice(0, half), slice(half, TOKENS - 1)
        arenas.append(
            [
                (_room(key[:, :, part].transpose(2, 3), capacity, 3), _room(value[:, :, part], capacity, 2))
                for part in parts
            ]
        )
    keys, values = ([[pair[side] for pair in layer] for layer in arenas] for side in (0, 1))
    cells = Cells([(1, 0, TOKENS - half, 0, 0, half)], keys, values)
    return native.logits(torch.tensor([TOKENS % model.config.vocab_size]), torch.tensor([TOKENS - 1]), cells)


def _room(x: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    shape = list(x.shape)
    shape[dim] = size
    out = x.new_zeros(shape)
    out.narrow(dim, 0, x.shape[dim]).copy_(x)
    return out


def _probe(forward: PackedForward, model: Any) -> tuple[list[Asked], torch.Tensor]:
    plan = _Recording()
    positions = torch.arange(TOKENS, device=model.device)
    logits = forward.logits((positions + 1) % model.config.vocab_size, positions, plan, None)
    return plan.asked, logits


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and float((one - other).abs().max()) <= SAME * float(other.abs().max())


def _parts(model: Any, asked: list[Asked]) -> LeanModel | None:
    """The model's parts, if they are those of a Llama and nothing else."""
    base, head = model.base_model, model.get_output_embeddings()
    shapes = {tuple(tensor.shape for tensor in one.tensors) for one in asked}
    if not _looks_like_llama(model) or len(asked) != len(base.layers) or len(shapes) != 1:
        return None
    (query, key, value) = shapes.pop()
    if key != value or query[-1] != key[-1]:
        return None
    heads, table = Heads(queries=query[1], keys=key[1], dim=query[-1]), base.embed_tokens.weight
    return LeanModel(
        table=table,
        angles=Angles(base.rotary_emb, table),
        sizes=Sizes(heads, hidden=table.shape[1], inner=len(base.layers[0].mlp.gate_proj.weight)),
        layers=[_layer(layer, one) for layer, one in zip(base.layers, asked, strict=True)],
        norm=ColumnNorm(base.norm),
        head=Head(head),
    )


def _looks_like_llama(model: Any) -> bool:
    base = model.base_model
    return (
        _children(base) == BASE
        and isinstance(model.get_output_embeddings(), Linear)
        and all(_children(layer) == LAYER for layer in base.layers)
        and all(_children(layer.self_attn) in (ATTENTION, ATTENTION | HEAD_NORMS) for layer in base.layers)
        and all(_children(layer.mlp) == FEED_FORWARD for layer in base.layers)
        and all(type(module) in KNOWN for module in model.modules() if list(module.parameters(recurse=False)))
    )


def _children(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def _layer(layer: Any, asked: Asked) -> LeanLayer:
    attention, feed_forward = layer.self_attn, layer.mlp
    return LeanLayer(
        attention_norm=ColumnNorm(layer.input_layernorm),
        projection=Product(attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=getattr(attention, "q_norm", None),
        key_norm=getattr(attention, "k_norm", None),
        scaling=asked.scaling,
        window=asked.window,
        output=Product(attention.o_proj),
        feed_forward_norm=ColumnNorm(layer.post_attention_layernorm),
        gate_and_up=Product(feed_forward.gate_proj, feed_forward.up_proj),
        down=Product(feed_forward.down_proj),
    )
