"""One attention entry point for engine and learner.

Both compute from the parameters of one transformers model, on one packed row of tokens. Prefill, decode and training
differ only in which token sees which. A plan knows that. transformers passes the plan on as a keyword argument, so the
model holds no state, and engine and learner can share its parameters.
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
"""Added to the score of a key that may not be seen. It is finite: a part in which all keys are blocked then has weight
0 when parts are merged, instead of NaN."""


flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
"""The kernels behind scaled_dot_product_attention on a CPU. That function does not return the log-sum-exp, which we
need to merge parts of attention, and it is twice as slow if there are both a mask and grouped heads. These kernels
return it and are fast. Keys and values may have fewer heads than queries."""


def on_flash(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the kernels support these tensors."""
    return query.device.type == "cpu" and query.shape[-1] == value.shape[-1]


def masked_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Attention with `bias` added to the scores."""
    if on_flash(query, value):
        output: torch.Tensor = flash(query, key, value, 0.0, False, attn_mask=bias, scale=scaling)[0]
        return output
    return fused_attention(query, key, value, scaling, bias)


def fused_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """torch's own attention, with `bias` added to the scores, or causal without one.

    On a GPU, keys and values are repeated for each query head. For grouped heads torch has only the kernel that holds
    all scores, if there is a mask or the numbers are float32. For repeated ones it has kernels whose memory does not
    grow with the square of the prompt."""
    is_on_cpu = query.device.type == "cpu"
    if not is_on_cpu:
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value)) if group > 1 else (key, value)
    return scaled_dot_product_attention(
        query, key, value, attn_mask=bias, is_causal=bias is None, scale=scaling, enable_gqa=is_on_cpu
    )


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
        """Attention of one layer. `query` is [1, heads, tokens, dim]; `key` and `value` have the KV heads. The result
        is [1, tokens, heads, value dim]. A query sees a key only if the key is less than `window` positions before
        it."""
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
    """The function that transformers calls in every layer."""
    extras = [name for name in ("softcap", "s_aux", "head_mask") if others.get(name) is not None]
    if plan is None or extras:
        why = f"it uses {', '.join(extras)}" if extras else "it does not pass keyword arguments to its attention"
        raise unsupported(type(module).__name__, why)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = plan.attend(module.layer_idx, query, key, value, scaling=scale, window=sliding_window)
    return output, None


def unsupported(what: str, why: str) -> ModelError:
    """The error for a model that cannot run here."""
    return ModelError(
        f"{what} cannot run on the embedded engine: {why}",
        remedy="use a decoder-only model with full or sliding-window attention (Llama, Qwen, Mistral, SmolLM ...)",
    )


AttentionInterface.register(NAME, attention)
