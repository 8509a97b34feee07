"""Finds out what a model's masks let its layers see, by asking the masks while the model runs.

Our attention gets a window and never looks at a mask. transformers sets both in different places, and in some models
only the mask knows the window. A test row would have to be longer than the window to show this, but a mask function can
be asked about any two positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from loopwright.errors import ModelError
from loopwright.models.attention import AttentionPlan, attention, unsupported
from loopwright.models.plans import Chunk, ChunkPlan

ASKING = "loopwright-asking-masks"
"""The name of an attention that computes the same as ours and also keeps the mask of each layer. Ours gets no masks."""

Sees = Callable[..., torch.Tensor]
"""A mask function of transformers: given batch, head and two positions, whether the query at one sees the key at the
other."""


class MaskedPlan(ChunkPlan):
    """Keeps the mask function of each layer, and the window that its attention call gets."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        super().__init__(chunks)
        self.layers: dict[int, tuple[Sees | None, int | None]] = {}


def windows_of(model: Any, plan: MaskedPlan, max_context: int) -> set[int]:
    """The windows of a model that has run with the plan. Raises ModelError if the attention was not told of one."""
    name, kinds = model.config.model_type, getattr(model.config, "layer_types", None)
    windows = set()
    for layer, (sees, window) in plan.layers.items():
        is_sliding = kinds is not None and kinds[layer] == "sliding_attention"
        if sees is not None:
            _compare(name, layer, sees, window, max_context, model.device)
        elif is_sliding and window is None:
            raise _no_window(name, layer)
        if window is not None:
            windows.add(window)
    return windows


def _compare(name: str, layer: int, sees: Sees, window: int | None, max_context: int, device: torch.device) -> None:
    """Compare the mask with the window, for the last queries that a run may have and for one in the middle. Two
    neighbouring queries reveal chunked attention."""
    last = max_context - 1
    keys = torch.arange(max_context + 1, device=device)
    for query in {last, max(last - 1, 0), last // 2}:
        try:
            at = torch.tensor([0, 0, query], device=device)
            seen = torch.as_tensor(sees(*at, keys), device=device).expand(keys.shape)
        except IndexError as error:
            raise unsupported(name, f"what layer {layer} sees depends on more than the distance of tokens") from error
        ours = (keys <= query) & (keys > query - (max_context if window is None else window))
        if not torch.equal(seen, ours):
            if window is None and bool((seen <= ours).all()):
                raise _no_window(name, layer)
            raise unsupported(name, f"the mask of layer {layer} is not that of its window ({window})")


def _no_window(name: str, layer: int) -> ModelError:
    return unsupported(name, f"layer {layer} has a sliding window, and its attention is told no window")


def _mask(*, mask_function: Sees, **others: Any) -> torch.Tensor:
    """An empty mask that is never added to scores. It carries the mask function."""
    mask = torch.zeros(1, 1, 1, 1)
    mask.sees = mask_function  # type: ignore[attr-defined]
    return mask


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    sliding_window: int | None = None,
    plan: AttentionPlan | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    if isinstance(plan, MaskedPlan):
        plan.layers[module.layer_idx] = (getattr(attention_mask, "sees", None), sliding_window)
    return attention(module, query, key, value, None, sliding_window=sliding_window, plan=plan, **others)


AttentionInterface.register(ASKING, _attention)
AttentionMaskInterface.register(ASKING, _mask)
