"""The lean forward serves exactly the models for which it computes the same; all others keep their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from loopwright.models.forward import ModuleForward
from loopwright.models.lean import LeanForward
from loopwright.models.linear import Linear
from loopwright.models.load import LoadedModel, load_model
from loopwright.models.plans import Chunk, ChunkPlan
from loopwright.models.probe import Probe, run_probe
from loopwright.models.product import FEATURES_FIRST
from loopwright.models.recognise import fastest_forward
from loopwright.testing.tiny import MAX_CONTEXT, SHAPE, tiny_llama, tiny_qwen2, tiny_qwen3, tiny_tokenizer


def mistral(folder: Path) -> Path:
    return write(folder, MistralForCausalLM, MistralConfig(vocab_size=300, sliding_window=6, **SHAPE))


def smollm3(folder: Path) -> Path:
    """Every second layer has no rotary embedding, which its parts do not show."""
    config = SmolLM3Config(vocab_size=300, pad_token_id=0, no_rope_layers=[1, 0], **SHAPE)
    return write(folder, SmolLM3ForCausalLM, config)


def mixture(folder: Path) -> Path:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    return write(folder, Qwen3MoeForCausalLM, Qwen3MoeConfig(vocab_size=300, **SHAPE, **experts))


def write(folder: Path, model_class: Any, config: Any) -> Path:
    torch.manual_seed(0)
    model_class(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def biased_llama(folder: Path) -> Path:
    return tiny_llama(folder, attention_bias=True, mlp_bias=True, tie_word_embeddings=False)


def loaded_from(folder: Path, dtype: str = "float32") -> LoadedModel:
    return load_model(str(folder), cache=folder, dtype=dtype)


def logits(forward: Any, tokens: int) -> torch.Tensor:
    ids = torch.randint(0, 250, (tokens,), generator=torch.Generator().manual_seed(tokens))
    # Two sequences, the second of which begins far out.
    cut = tokens // 2
    positions = torch.cat([torch.arange(cut), torch.arange(cut, tokens) + 100])
    plan = ChunkPlan([Chunk(0, cut), Chunk(cut, tokens)]) if cut else ChunkPlan([Chunk(0, tokens)])
    result: torch.Tensor = forward.logits(ids, positions, plan, None)
    return result


def shake(model: nn.Module) -> None:
    """Change every parameter in place, biases and norms included, as training does."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


@pytest.mark.parametrize("make", [tiny_llama, biased_llama, tiny_qwen2, tiny_qwen3, mistral])
def test_a_model_like_llama_is_served_and_every_update_is_seen(make: Callable[[Path], Path], tmp_path: Path) -> None:
    loaded = loaded_from(make(tmp_path))
    assert isinstance(loaded.forward, LeanForward)
    own = ModuleForward(loaded.model)
    for tokens in (1, FEATURES_FIRST.start, 17, FEATURES_FIRST.stop - 1, FEATURES_FIRST.stop):
        shake(loaded.model)
        assert torch.allclose(logits(loaded.forward, tokens), logits(own, tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [smollm3, mixture])
def test_a_model_that_differs_keeps_its_own_forward(make: Callable[[Path], Path], tmp_path: Path) -> None:
    assert isinstance(loaded_from(make(tmp_path)).forward, ModuleForward)


def test_half_precision_keeps_its_own_forward(tiny_llama_folder: Path) -> None:
    assert isinstance(loaded_from(tiny_llama_folder, "bfloat16").forward, ModuleForward)


def other_activation(model: Any) -> None:
    model.model.layers[1].mlp.act_fn = nn.GELU()


def scaled_embeddings(model: Any) -> None:
    table = model.model.embed_tokens
    table.register_forward_hook(lambda module, given, result: 2 * result)


def part_of_its_own(model: Any) -> None:
    """A parameter that changes nothing yet, and would once it is trained."""
    model.model.layers[0].self_attn.gain = nn.Parameter(torch.ones(1))


def other_linear(model: Any) -> None:
    old = model.model.layers[0].mlp.up_proj
    outputs, inputs = old.weight.shape
    model.model.layers[0].mlp.up_proj = nn.Linear(inputs, outputs, bias=False)


def one_more_norm(model: Any) -> None:
    model.model.layers[0].self_attn.v_norm = nn.Identity()


@pytest.mark.parametrize("change", [other_activation, scaled_embeddings, part_of_its_own, other_linear, one_more_norm])
def test_what_only_looks_like_llama_is_not_served(change: Callable[[Any], None], tiny_llama_folder: Path) -> None:
    model = loaded_from(tiny_llama_folder).model
    assert isinstance(model.model.layers[0].mlp.up_proj, Linear)
    change(model)
    own = run_probe(ModuleForward(model), Probe.of(model, MAX_CONTEXT))
    assert isinstance(fastest_forward(model, own), ModuleForward)


def test_only_the_wanted_logits_are_computed(tiny_llama_folder: Path) -> None:
    forward = loaded_from(tiny_llama_folder).forward
    ids, plan = torch.arange(8), ChunkPlan([Chunk(0, 8)])
    whole = forward.logits(ids, torch.arange(8), plan, None)
    some = forward.logits(ids, torch.arange(8), plan, torch.tensor([3, 7]))
    assert torch.allclose(some, whole[[3, 7]], atol=1e-5)
