"""The norm that we put in a model's place computes what the model's own does, or is not put there."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from loopwright.models.load import load_model
from loopwright.models.norm import RmsNorm, replace_norms


def random_weight(size: int) -> nn.Parameter:
    return nn.Parameter(1 + 0.3 * torch.randn(size, generator=torch.Generator().manual_seed(1)))


def test_values_and_gradients_are_those_of_the_plain_formula() -> None:
    mine, theirs = RmsNorm(random_weight(48), 1e-5), LlamaRMSNorm(48, 1e-5).double()
    theirs.weight = nn.Parameter(mine.weight.detach().double())
    x = 3 * torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(2)) + 1
    grad = torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(3))
    x_mine, x_theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    # LlamaRMSNorm casts to float32 inside, so the formula is written out for double.
    reference = theirs.weight * x_theirs * torch.rsqrt(x_theirs.square().mean(-1, keepdim=True) + 1e-5)
    result = mine(x_mine)
    result.backward(grad)
    reference.backward(grad.double())
    for ours, exact in ((result, reference), (x_mine.grad, x_theirs.grad), (mine.weight.grad, theirs.weight.grad)):
        assert ours is not None
        assert exact is not None
        assert torch.allclose(ours.double(), exact, rtol=1e-5, atol=1e-6)


def test_only_norms_that_compute_the_same_are_replaced() -> None:
    """Gemma multiplies by 1 + weight: the same names, another meaning."""
    model = nn.ModuleDict({"plain": LlamaRMSNorm(16), "plus_one": Gemma2RMSNorm(16), "layer": nn.LayerNorm(16)})
    kept = model["plain"].weight
    replace_norms(model)
    assert isinstance(model["plain"], RmsNorm)
    assert model["plain"].weight is kept
    assert isinstance(model["plus_one"], Gemma2RMSNorm)
    assert isinstance(model["layer"], nn.LayerNorm)


class ByHead(nn.Module):
    """Of tensors [batch, tokens, heads, dim] alone, as xLSTM has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = random_weight(16), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, _, heads, dim = x.shape
        return x * self.weight.view(heads, dim)


def test_a_norm_of_tensors_of_another_shape_is_left_alone() -> None:
    model = nn.ModuleDict({"by_head": ByHead()})
    replace_norms(model)
    assert isinstance(model["by_head"], ByHead)


def test_a_loaded_model_has_them_and_keeps_its_names(tiny_llama_folder: Path) -> None:
    model = load_model(str(tiny_llama_folder), cache=tiny_llama_folder).model
    assert isinstance(model.model.norm, RmsNorm)
    assert all(isinstance(layer.input_layernorm, RmsNorm) for layer in model.model.layers)
    assert "model.layers.0.input_layernorm.weight" in model.state_dict()
