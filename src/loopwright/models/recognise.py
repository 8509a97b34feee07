"""Decides which models use the lean forward: those for which it computes the same.

Architectures look alike but differ in details (layers without rotary embedding, factors, another activation), so
looking alike is not enough. A model is accepted if it has only parts and parameters that we know, and if all layers get
the same queries, keys and values, and the logits are the same, also beyond its windows and at the last positions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
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
from loopwright.models.probe import AttentionCall, ProbeResult, run_probe
from loopwright.models.product import OutputHead, Product
from loopwright.models.rotary import Angles
from loopwright.models.workspace import Heads, Sizes

BASE = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
NORMS = HEAD_NORMS | {"norm", "input_layernorm", "post_attention_layernorm"}
FEED_FORWARD = {"gate_proj", "up_proj", "down_proj", "act_fn"}
PRODUCTS = ATTENTION | FEED_FORWARD - {"act_fn"}
KNOWN = {Linear, RmsNorm, nn.Embedding}
"""The only modules that may have their own parameters. The first two are used only on a CPU and in float32."""

log = logging.getLogger("loopwright")

SHARED = 5
"""How many tokens at the beginning of a sequence are a shared prompt when its last tokens are decoded."""
DECODED = 7
"""How many of the last tokens of each sequence are decoded."""
SAME = 1e-3
"""How much a number may differ, relative to the largest number of its kind."""


def fastest_forward(
    model: Any, proven: ProbeResult, find: Callable[[], Library | Unavailable] | None = None
) -> PackedForward:
    """The lean forward if it computes what the model was proven to compute, otherwise the model's own forward. It
    decodes with the library that `find` returns, if that computes the same too."""
    parts = llama_parts(model, proven.asked)
    if parts is None:
        return ModuleForward(model)
    lean = LeanForward(parts)
    mine = run_probe(lean, proven.probe)
    pairs = [(mine.logits, proven.logits)]
    for one, other in zip(mine.asked, proven.asked, strict=True):
        pairs += zip(one.tensors, other.tensors, strict=True)
    if not all(_is_same(one, other) for one, other in pairs):
        return ModuleForward(model)
    found = find() if find is not None else None
    faster = LeanForward(parts, found) if isinstance(found, Library) else lean
    native = faster.native()
    try:
        if native is None or _decodes_the_same(native, proven):
            return faster
        log.warning("native decode steps compute something else for this model here: it decodes with torch")
    except NoRoomError as error:
        log.warning("no memory to prove native decode steps (%s): the model decodes with torch", error)
    finally:
        parts.angles.tabulate()
    return lean


def _decodes_the_same(native: NativeStep, proven: ProbeResult) -> bool:
    """Whether one native step gives the same logits for the last tokens of each sequence, each decoded after the tokens
    before it. Tokens at position `SHARED` or later use a shared prompt."""
    tokens: list[int] = []
    cells: list[tuple[int, ...]] = []
    stretches: list[list[slice]] = []
    for chunk in proven.probe.chunks:
        shared = slice(chunk.start, min(chunk.start + SHARED, chunk.end))
        decoded = range(max(chunk.start + 1, chunk.end - DECODED), chunk.end)
        own = [slice(chunk.start if token < shared.stop else shared.stop, token) for token in decoded]
        arena = len(stretches)
        for row, before in enumerate(own):
            prompt = (arena, 0, SHARED) if before.start == shared.stop else (-1, -1, 0)
            cells.append((arena + 1, row, before.stop + 1 - before.start, *prompt))
        stretches += [shared], own
        tokens += decoded
    if not tokens:  # the context has one token
        return True
    arenas = [[_arena(one, rows) for rows in stretches] for one in proven.asked]
    keys, values = ([[pair[side] for pair in layer] for layer in arenas] for side in (0, 1))
    at = torch.tensor(tokens)
    ids, positions = proven.probe.ids[at], proven.probe.positions[at]
    return _is_same(native.logits(ids, positions, Cells(cells, keys, values)), proven.logits[at])


def _arena(asked: AttentionCall, stretches: Sequence[slice]) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys and values of these ranges of tokens, one row each, with room for one more token."""
    _, key, value = asked.tensors
    _, heads, _, dim = key.shape
    longest = max((stretch.stop - stretch.start for stretch in stretches), default=0)
    capacity = (longest // STRIDE + 1) * STRIDE
    keys = torch.zeros(len(stretches), heads, dim, capacity, dtype=key.dtype)
    values = torch.zeros(len(stretches), heads, capacity, dim, dtype=value.dtype)
    for row, stretch in enumerate(stretches):
        length = stretch.stop - stretch.start
        keys[row, :, :, :length] = key[0, :, stretch].transpose(1, 2)
        values[row, :, :length] = value[0, :, stretch]
    return keys, values


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and float((one - other).abs().max()) <= SAME * float(other.abs().max())


def llama_parts(model: Any, asked: list[AttentionCall]) -> LeanModel | None:
    """The model's parts, or None if they are not exactly those of a Llama. `asked` is how each layer asks for
    attention."""
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
        # The probe uses the last positions. A table for the whole context could take gigabytes (a million positions).
        angles=Angles(base.rotary_emb, table, tabled=False),
        sizes=Sizes(heads, hidden=table.shape[1], inner=len(base.layers[0].mlp.gate_proj.weight)),
        layers=[_layer(layer, one) for layer, one in zip(base.layers, asked, strict=True)],
        norm=ColumnNorm(base.norm),
        head=OutputHead(head),
    )


def _looks_like_llama(model: Any) -> bool:
    base = model.base_model
    return (
        _children(base) == BASE
        and type(model.get_output_embeddings()) is Linear
        and all(_children(layer) == LAYER for layer in base.layers)
        and all(_children(layer.self_attn) in (ATTENTION, ATTENTION | HEAD_NORMS) for layer in base.layers)
        and all(_children(layer.mlp) == FEED_FORWARD for layer in base.layers)
        and all(type(norm) is RmsNorm for norm in _norms(base))
        # By type: a layer with an adapter has a weight too, which is only a part of what it computes.
        and all(type(layer) is Linear for layer in _products(base))
        and all(type(module) in KNOWN for module in model.modules() if list(module.parameters(recurse=False)))
    )


def _norms(base: Any) -> list[nn.Module]:
    """All modules that are named like norms. They are found by name, because the check of parameters does not see a
    norm without parameters, which could compute anything."""
    named = base.named_modules()
    return [module for name, module in named if name.rpartition(".")[2] in NORMS]


def _products(base: Any) -> list[nn.Module]:
    """The modules whose weights are read as matrices."""
    halves = [half for layer in base.layers for half in (layer.self_attn, layer.mlp)]
    return [child for half in halves for name, child in half.named_children() if name in PRODUCTS]


def _children(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def _layer(layer: Any, asked: AttentionCall) -> LeanLayer:
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
