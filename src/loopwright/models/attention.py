"""One attention entry point for engine and learner.

Both compute from the parameters of one transformers model, on one packed row of tokens. All that differs between
prefill, decode and training is which token sees which; that is a plan's business. transformers hands the plan through
as a keyword argument, so no state hides in the model, and engine and learner can share its parameters.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from loopwright.errors import ModelError

NAME = "loopwright"
"""The name under which the attention is registered with transformers."""

BLOCKED = -1e30
"""Added to the score of a key that may not be seen. Finite, so that a part in which every key is blocked weighs
nothing when parts are merged, instead of turning into NaN."""


flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
"""The kernels behind scaled_dot_product_attention on a CPU. It does not hand out the log-sum-exp, by which parts of
attention are merged, and takes a path twice as slow when a mask meets grouped heads. These do both; heads of keys and
values may be fewer than those of queries."""


def on_flash(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the kernels take these tensors."""
    return query.device.type == "cpu" and query.shape[-1] == value.shape[-1]


def masked_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Attention with `bias` added to the scores."""
    if on_flash(query, value):
        output: torch.Tensor = flash(query, key, value, 0.0, False, attn_mask=bias, scale=scaling)[0]
        return output
    return scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling, enable_gqa=True)


class AttentionPlan(Protocol):
    """Knows which packed token sees which keys, and where keys and values are kept."""

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
        """Attention of one layer: `query` is [1, heads, tokens, dim], `key` and `value` have the KV heads; the
        result is [1, tokens, heads, value dim]. A query sees a key only if it is less than `window` behind."""
        ...


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    plan: AttentionPlan | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in every layer."""
    extras = [name for name in ("softcap", "s_aux", "head_mask") if others.get(name) is not None]
    if plan is None or extras:
        why = f"it uses {', '.join(extras)}" if extras else "it does not hand keyword arguments to its attention"
        raise unsupported(type(module).__name__, why)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = plan.attend(module.layer_idx, query, key, value, scaling=scale, window=sliding_window)
    return output, None


def unsupported(what: str, why: str) -> ModelError:
    """The one way to say that a model cannot run here."""
    return ModelError(
        f"{what} cannot run on the embedded engine: {why}",
        remedy="use a decoder-only model with full or sliding-window attention (Llama, Qwen, Mistral, SmolLM ...)",
    )


AttentionInterface.register(NAME, attention)
