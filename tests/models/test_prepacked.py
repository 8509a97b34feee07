"""Prepacked weights give what the layers give, for those models alone that gain by them and leave the memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from loopwright.models import prepacked
from loopwright.models.forward import ModuleForward, PackedForward
from loopwright.models.linear import Linear
from loopwright.models.load import LoadedModel, load_model
from loopwright.models.plans import Chunk, ChunkPlan
from loopwright.models.prepacked import LARGEST, PAYS, ROWS, SMALLEST, Prepacked, is_worth_it
from loopwright.testing.tiny import tiny_llama, tiny_qwen2, tiny_qwen3

FEATURES = 40

needs_mkl = pytest.mark.skipif(
    not torch.backends.mkl.is_available(),  # type: ignore[no-untyped-call]
    reason="weights are packed for MKL",
)


def layer(features: int, bias: bool) -> Linear:
    made = nn.Linear(FEATURES, features, bias=bias)
    return Linear(made.weight, made.bias)


def of_size(numbers: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Linear:
    return Linear(nn.Parameter(torch.empty(numbers, 1, device=device, dtype=dtype)), None)


def biased_llama(folder: Path) -> Path:
    return tiny_llama(folder, attention_bias=True, mlp_bias=True, tie_word_embeddings=False)


@needs_mkl
@pytest.mark.parametrize("biases", [(False,), (True,), (False, False), (True, False, True)])
@torch.no_grad()
def test_layers_become_one_product(biases: tuple[bool, ...]) -> None:
    layers = [layer(8 * (number + 1), bias) for number, bias in enumerate(biases)]
    packed = Prepacked(layers)
    for rows in PAYS:
        # A slice of something larger and a transposed one: nobody promises that rows lie side by side.
        sliced, turned = torch.randn(rows, 2 * FEATURES)[:, ::2], torch.randn(FEATURES, rows).t()
        for x in (torch.randn(rows, FEATURES), sliced, turned):
            expected = torch.cat([one(x) for one in layers], dim=1)
            assert torch.allclose(packed(x), expected, rtol=1e-5, atol=1e-5)


@needs_mkl
def test_too_many_rows_are_refused() -> None:
    with pytest.raises(RuntimeError, match="takes 64 rows, not 65"):
        Prepacked([layer(8, bias=False)])(torch.randn(ROWS + 1, FEATURES))


@needs_mkl
@torch.no_grad()
def test_what_could_not_be_packed_whole_is_packed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = layer(8, bias=True)
    packed, x = Prepacked([one]), torch.randn(ROWS, FEATURES)

    def fails(layer: Linear) -> torch.Tensor:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(prepacked, "_bias", fails)
        with pytest.raises(MemoryError):
            packed(x)
    assert torch.allclose(packed(x), one(x), rtol=1e-5, atol=1e-5)


@needs_mkl
def test_only_models_that_gain_get_a_copy() -> None:
    large, small = of_size(SMALLEST), of_size(SMALLEST - 1)
    assert is_worth_it([large, small], typical=large)
    assert not is_worth_it([large, small], typical=small)
    assert not is_worth_it([large, of_size(3, dtype=torch.bfloat16)], typical=large)
    assert not is_worth_it([large, of_size(3, device="meta")], typical=large)
    rest = LARGEST // 4 - SMALLEST
    assert is_worth_it([large, of_size(rest)], typical=large)
    assert not is_worth_it([large, of_size(rest + 1)], typical=large)


def test_without_mkl_nobody_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    large = of_size(SMALLEST)
    assert not is_worth_it([large], typical=large)


def logits(forward: PackedForward, tokens: int) -> torch.Tensor:
    ids = torch.randint(0, 250, (tokens,), generator=torch.Generator().manual_seed(tokens))
    return forward.logits(ids, torch.arange(tokens), ChunkPlan([Chunk(0, tokens)]), None)


def shake(loaded: LoadedModel) -> None:
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)


@needs_mkl
@pytest.mark.parametrize("make", [tiny_llama, biased_llama, tiny_qwen2, tiny_qwen3])
def test_a_prepacked_model_computes_what_the_model_did_at_its_first_pass(
    make: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepacked, "SMALLEST", 1)
    assert callable(make)
    loaded = load_model(str(make(tmp_path)), cache=tmp_path)
    own, packed = ModuleForward(loaded.model), loaded.forward.prepacked()
    assert packed is not None
    shake(loaded)
    for tokens in (PAYS.start, ROWS - 1, ROWS):
        assert torch.allclose(logits(packed, tokens), logits(own, tokens), rtol=1e-4, atol=1e-4)
    shake(loaded)
    assert not torch.allclose(logits(packed, ROWS), logits(own, ROWS), rtol=1e-4, atol=1e-4)
    again = loaded.forward.prepacked()
    assert again is not None
    assert torch.allclose(logits(again, ROWS), logits(own, ROWS), rtol=1e-4, atol=1e-4)


def test_a_small_model_does_without(tmp_path: Path) -> None:
    assert load_model(str(tiny_llama(tmp_path)), cache=tmp_path).forward.prepacked() is None
