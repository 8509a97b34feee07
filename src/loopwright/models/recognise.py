"""Which models the lean forward serves: those for which it computes the same.

Architectures look alike and hide surprises (layers without rotary embedding, factors, another activation), so likeness
is only where we begin. A model is served if the parts that we know are all it has, down to the last parameter, and if
every layer's queries, keys and values come out the same, as well as the logits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from loopwright.models.forward import ModuleForward, PackedForward
from loopwright.models.lean import LeanForward, LeanLayer, LeanModel
from loopwright.models.linear import Linear
from loopwright.models.native.cells import STRIDE, Cells
from loopwright.models.native.library import Library, Unavailable
from loopwright.models.native.step import NativeStep, NoRoomError
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

log = logging.getLogger("loopwright")

TOKENS = 12
SHARED = 5
"""Tokens at the probe's beginning that those behind share, when they are decoded."""
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


def fastest_forward(model: Any, find: Callable[[], Library | Unavailable] | None = None) -> PackedForward:
    """The lean forward if it computes what the model does, else the model's own. It decodes by the library that `find`
    finds, if that computes the same too."""
    own = ModuleForward(model)
    theirs, logits = _probe(own, model)
    parts = _parts(model, theirs)
    if parts is None:
        return own
    lean = LeanForward(parts)
    mine, same_logits = _probe(lean, model)
    pairs = [(same_logits, logits)]
    for one, other in zip(mine, theirs, strict=True):
        pairs += zip(one.tensors, other.tensors, strict=True)
    if not all(_is_same(one, other) for one, other in pairs):
        return own
    found = find() if find is not None else None
    faster = LeanForward(parts, found) if isinstance(found, Library) else lean
    try:
        native = faster.native()
        if native is None or _is_same(_decoded(native, model, mine), logits[1:]):
            return faster
        log.warning("native decode steps compute something else for this model here: it decodes by torch")
    except NoRoomError as error:
        log.warning("no memory to prove native decode steps (%s): the model decodes by torch", error)
    return lean


def _decoded(native: NativeStep, model: Any, asked: list[Asked]) -> torch.Tensor:
    """The logits after all tokens of the probe but the first, each decoded behind those before it, in one step. From
    `SHARED` on they share a prompt."""
    shared, own = slice(0, SHARED), [0 if last < SHARED else SHARED for last in range(1, TOKENS)]
    arenas = [
        [_arena(one, [shared]), _arena(one, [slice(start, last) for last, start in enumerate(own, 1)])] for one in asked
    ]
    keys, values = ([[pair[side] for pair in layer] for layer in arenas] for side in (0, 1))
    prompts = [(0, 0, SHARED) if start else (-1, -1, 0) for start in own]
    cells = [(1, row, row + 2 - start, *prompt) for row, (start, prompt) in enumerate(zip(own, prompts, strict=True))]
    positions = torch.arange(1, TOKENS)
    return native.logits((positions + 1) % model.config.vocab_size, positions, Cells(cells, keys, values))


def _arena(asked: Asked, stretches: Sequence[slice]) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys and values of these stretches of tokens, a row for each."""
    _, key, value = asked.tensors
    _, heads, _, dim = key.shape
    keys = torch.zeros(len(stretches), heads, dim, STRIDE, dtype=key.dtype)
    values = torch.zeros(len(stretches), heads, STRIDE, dim, dtype=value.dtype)
    for row, stretch in enumerate(stretches):
        length = stretch.stop - stretch.start
        keys[row, :, :, :length] = key[0, :, stretch].transpose(1, 2)
        values[row, :, :length] = value[0, :, stretch]
    return keys, values


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
