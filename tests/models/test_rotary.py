"""Angles that are looked up are those of the model's own rotary embedding, wherever a token stands."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from loopwright.models.rotary import FIRST_TABLE, Angles, Rotation, choose_angles

CONTEXT, DIM = 64, 16


def rotary(kind: str) -> Any:
    parameters: dict[str, Any] = {"rope_type": kind, "rope_theta": 10_000.0}
    if kind != "default":
        parameters |= {"factor": 4.0, "original_max_position_embeddings": CONTEXT}
    if kind == "longrope":
        del parameters["factor"]
        parameters |= {"short_factor": [1.5] * (DIM // 2), "long_factor": [6.0] * (DIM // 2)}
    if kind == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    shape = {"hidden_size": 2 * DIM, "num_attention_heads": 2, "head_dim": DIM, "max_position_embeddings": CONTEXT}
    return LlamaRotaryEmbedding(LlamaConfig(**shape, rope_parameters=parameters))


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn", "dynamic"])
def test_angles_are_the_models_own_far_behind_the_first_table_too(kind: str) -> None:
    like = torch.zeros(1)
    angles = Angles(rotary(kind), like)
    # A dynamic kind changes all angles when a sequence becomes long, and takes it back when it is gone.
    for positions in ([0, 5, 30], [FIRST_TABLE - 1], [3, FIRST_TABLE], [40 * CONTEXT + 7, 1], [2]):
        given = torch.tensor(positions)
        cos, sin = angles.at(given)
        theirs = rotary(kind)(like, given[None])
        assert torch.allclose(cos, theirs[0][0, :, None], atol=1e-6)
        assert torch.allclose(sin, theirs[1][0, :, None], atol=1e-6)
        angles.into(both := torch.empty(len(positions), 1, 2 * DIM), given)
        assert torch.equal(both, torch.cat([cos, sin], dim=-1))


def test_heads_are_turned_as_transformers_does() -> None:
    tokens, heads = 5, 3
    x = torch.randn(tokens, heads, DIM, generator=torch.Generator().manual_seed(0))
    turn = Rotation(x, turned := torch.empty_like(x), torch.empty(tokens, 1, 2 * DIM))
    angles = Angles(rotary("default"), x)
    for start in (0, 20):
        positions = torch.arange(start, start + tokens)
        angles.into(turn.angles, positions)
        turn.turn()
        cos, sin = rotary("default")(x, positions[None])
        theirs, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
        assert torch.allclose(turned, theirs[0].transpose(0, 1), atol=1e-6)


@pytest.mark.parametrize(("longest", "row"), [(CONTEXT, [0, 5, CONTEXT - 1]), (CONTEXT + 1, [0, 5, CONTEXT])])
def test_factors_are_chosen_by_the_context_of_the_run_and_not_by_neighbours(longest: int, row: list[int]) -> None:
    """As transformers chooses them for a row that ends at the last position."""
    chosen, own = (nn.ModuleList([rotary("longrope")]) for _ in range(2))
    choose_angles(chosen, longest)
    like, last = torch.zeros(1), torch.tensor([row])
    for name, ours, theirs in zip(("cos", "sin"), chosen[0](like, last), own[0](like, last), strict=True):
        assert torch.equal(ours, theirs), name
    for packed in ([5], [5, 2], [5, CONTEXT - 1], [5, CONTEXT + 30]):
        assert torch.equal(chosen[0](like, torch.tensor([packed]))[0][:, :1], chosen[0](like, last)[0][:, 1:2])
    angles = Angles(chosen[0], like)
    assert torch.equal(angles.at(last[0])[0][:, 0], chosen[0](like, last)[0][0])


def test_dynamic_angles_stay_as_the_model_made_them() -> None:
    """HunYuan multiplies the base of its own by a factor that transformers' plain formula does not know."""
    own = rotary("dynamic")
    own.inv_freq = own.inv_freq * 0.5
    wanted = own.inv_freq.clone()
    choose_angles(nn.ModuleList([own]), CONTEXT)
    own(torch.zeros(1), torch.tensor([[0, 5 * CONTEXT]]))
    assert torch.equal(own.inv_freq, wanted)
