"""Tiny random models of many architectures, wide enough that a wrong factor, window or angle shows.

Whoever trains them is measured by transformers' own eager forward, one sequence at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from loopwright.testing.tiny import SHAPE, tiny_tokenizer

CONTEXT = 240
"""Tokens of a run. The largest position is `CONTEXT - 1`."""

WINDOW = 20
ORIGINAL = 64
"""Where models whose context was stretched begin to scale."""

ROTATED = SHAPE["hidden_size"] // SHAPE["num_attention_heads"] // 2
"""Angles of a head."""


@dataclass(frozen=True, slots=True)
class Kind:
    """An architecture. `config` goes over the common shape. `refused` is part of the
    reason why it is not trained here; `lean`: whether the lean forward serves it. `plain` is what the measure's config
    has differently, where the model's own depends on the length of the row."""

    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    refused: str | None = None
    lean: bool = False
    plain: Mapping[str, Any] = field(default_factory=dict)


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **parameters}}


def longrope(short: float, long: float, **others: float) -> dict[str, Any]:
    factors = {"short_factor": [short] * ROTATED, "long_factor": [long] * ROTATED}
    return {
        **rope("longrope", original_max_position_embeddings=ORIGINAL, **factors, **others),
        "original_max_position_embeddings": ORIGINAL,
        "max_position_embeddings": 1024,
        "head_dim": 2 * ROTATED,
    }


EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1,
}
SLIDING = {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
YARN = rope("yarn", factor=16.0, original_max_position_embeddings=ORIGINAL, llama_4_scaling_beta=0.3)

ZOO = {
    "llama": Kind("llama", lean=True),
    "llama3 angles": Kind(
        "llama",
        rope(
            "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=ORIGINAL
        ),
        lean=True,
    ),
    "dynamic angles": Kind("llama", rope("dynamic", factor=4.0), lean=True),
    "qwen2": Kind("qwen2", lean=True),
    "qwen3": Kind("qwen3", lean=True),
    "sliding qwen3": Kind("qwen3", SLIDING, lean=True),
    "qwen3, wide window": Kind("qwen3", SLIDING | {"sliding_window": 200}, lean=True),
    "mistral": Kind("mistral", {"sliding_window": WINDOW}, lean=True),
    "ministral3": Kind("ministral3", YARN),
    "sliding ministral3": Kind("ministral3", YARN | {"sliding_window": WINDOW}),
    "phi3": Kind("phi3", {"head_dim": 2 * ROTATED}),
    "long llama": Kind("llama", longrope(1.0, 4.0), lean=True, plain=longrope(4.0, 4.0)),
    "phi3, short factors": Kind(
        "phi3",
        longrope(1.0, 4.0) | {"original_max_position_embeddings": 512},
    ),
    "phi3, long factors": Kind("phi3", longrope(1.0, 4.0), plain=longrope(4.0, 4.0)),
    "olmo": Kind("olmo"),
    "olmo2": Kind("olmo2"),
    "granite": Kind("granite", {"attention_multiplier": 0.1, "residual_multiplier": 0.3, "embedding_multiplier": 4.0}),
    "granite, scaled logits": Kind("granite", {"logits_scaling": 8.0}, refused="product of hidden states and head"),
    "smollm3": Kind("smollm3", {"no_rope_layers": [1, 0]}),
    "gpt2": Kind("gpt2", {"n_positions": CONTEXT}),
    "qwen2 moe": Kind("qwen2_moe", EXPERTS),
    "sliding qwen2 moe": Kind("qwen2_moe", EXPERTS | SLIDING, refused="told no window"),
    "qwen2 moe, wide window": Kind("qwen2_moe", EXPERTS | SLIDING | {"sliding_window": 200}, refused="told no window"),
    "qwen2 moe, wider than the run": Kind("qwen2_moe", EXPERTS | SLIDING | {"sliding_window": 4096}),
    "qwen3 moe": Kind("qwen3_moe", EXPERTS),
    "gemma2": Kind("gemma2", SLIDING, refused="softcap"),
    "gemma2, no caps": Kind("gemma2", SLIDING | {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2, capped logits": Kind(
        "gemma2", SLIDING | {"attn_logit_softcapping": None}, refused="product of hidden states and head"
    ),
    "gemma3": Kind("gemma3_text", SLIDING),
    "gpt-oss": Kind("gpt_oss", SLIDING | {"num_local_experts": 4}, refused="s_aux"),
    "llama4": Kind("llama4_text", {"num_local_experts": 2}, refused="chunked_attention"),
    "phi": Kind("phi", refused="its head has a bias"),
    "phimoe, long factors": Kind(
        "phimoe",
        longrope(1.0, 4.0, short_mscale=1.0, long_mscale=1.2) | {"num_local_experts": 4},
        refused="depend on what else is in its batch",
    ),
    "mbart": Kind("mbart", {"d_model": 32, "decoder_layers": 2}, refused="depend on what else is in its batch"),
    "mpt": Kind("mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4}, refused="its forward fails"),
    "fuyu": Kind("fuyu", refused="it is not a plain language model"),
    "mamba": Kind("mamba", refused="linear_attention"),
    "qwen3 next": Kind("qwen3_next", EXPERTS, refused="linear_attention"),
}


def build(kind: Kind, folder: Path) -> Path:
    """Write the model, with random weights, and the tiny tokenizer to `folder`."""
    tokenizer = tiny_tokenizer()
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = AutoConfig.for_model(kind.model_type, vocab_size=len(tokenizer), **ends, **(SHAPE | dict(kind.config)))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _spread(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def plain_model(kind: Kind, folder: Path) -> Any:
    """transformers' own, as it computes one sequence."""
    config = AutoConfig.from_pretrained(folder)
    for name, value in kind.plain.items():
        setattr(config, name, value)
    return AutoModelForCausalLM.from_pretrained(
        folder, config=config, attn_implementation="eager", dtype=torch.float32
    ).eval()


@torch.no_grad()
def _spread(model: nn.Module) -> None:
    """Random weights, so large that tokens, positions and heads matter. Small ones hide what is wrong."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.copy_(0.8 * noise * min(parameter.shape[-2:]) ** -0.5)
        else:
            parameter.add_(0.1 * noise)
