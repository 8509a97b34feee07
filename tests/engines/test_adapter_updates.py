"""The embedded engine merges adapters into its own weights, each time into what they were without any."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from loopwright.engines.torch.weights import EngineWeights
from loopwright.errors import EngineError
from loopwright.models.load import LoadedModel, load_model
from loopwright.testing.tiny import tiny_llama

QUERY, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedModel:
    return load_model(str(tiny_llama(tmp_path / "model")), cache=tmp_path)


def adapters(loaded: LoadedModel, *targets: str, seed: int = 0) -> dict[str, torch.Tensor]:
    random, parameters = torch.Generator().manual_seed(seed), dict(loaded.model.named_parameters())
    made = {}
    for target in targets:
        outputs, inputs = parameters[f"{target}.weight"].shape
        made[f"{target}.lora_A.weight"] = torch.randn(3, inputs, generator=random)
        made[f"{target}.lora_B.weight"] = torch.randn(outputs, 3, generator=random)
    return made


def weights(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in loaded.model.named_parameters()}


def check(loaded: LoadedModel, base: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """The weights are W + B·A for the targets, and W for all others."""
    for name, parameter in loaded.model.named_parameters():
        target, expected = name.removesuffix(".weight"), base[name]
        if f"{target}.lora_A.weight" in tensors:
            expected = expected + tensors[f"{target}.lora_B.weight"] @ tensors[f"{target}.lora_A.weight"]
        assert torch.allclose(parameter, expected, atol=1e-5), name


def test_each_update_replaces_the_adapters_before_it(loaded: LoadedModel) -> None:
    base, engine = weights(loaded), EngineWeights(loaded.model)
    for seed in range(3):
        update = adapters(loaded, QUERY, DOWN, seed=seed)
        engine.change(update)()
        check(loaded, base, update)


def test_a_target_that_has_no_adapter_any_more_is_as_it_was(loaded: LoadedModel) -> None:
    base, engine = weights(loaded), EngineWeights(loaded.model)
    engine.change(adapters(loaded, QUERY, DOWN))()
    update = adapters(loaded, DOWN, seed=1)
    engine.change(update)()
    check(loaded, base, update)
    assert torch.equal(dict(loaded.model.named_parameters())[f"{QUERY}.weight"], base[f"{QUERY}.weight"])


def test_adapters_after_whole_weights_are_merged_into_these(loaded: LoadedModel) -> None:
    engine = EngineWeights(loaded.model)
    engine.change(adapters(loaded, QUERY))()
    whole = {name: parameter + 1 for name, parameter in weights(loaded).items()}
    engine.change(whole)()
    update = adapters(loaded, QUERY, seed=2)
    engine.change(update)()
    check(loaded, whole, update)


@pytest.mark.parametrize("fault", ["unknown", "half", "shape", "mixed"])
def test_adapters_that_do_not_fit_change_nothing(loaded: LoadedModel, fault: str) -> None:
    before, update = weights(loaded), adapters(loaded, QUERY, DOWN)
    match fault:
        case "unknown":
            update["model.layers.9.mlp.lora_A.weight"] = update[f"{DOWN}.lora_A.weight"]
        case "half":
            del update[f"{DOWN}.lora_B.weight"]
        case "shape":
            update[f"{DOWN}.lora_A.weight"] = update[f"{DOWN}.lora_A.weight"][:2]
        case "mixed":
            update["model.norm.weight"] = torch.ones(3)
    with pytest.raises(EngineError, match="do not fit this model"):
        EngineWeights(loaded.model).change(update)
    check(loaded, before, {})
