"""Adapters of peft are merged as peft would merge them, or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from loopwright.config.model_folders import is_adapter
from loopwright.errors import ModelError
from loopwright.models.adapter_base import base_of
from loopwright.models.load import load_model
from loopwright.models.outline import whole_source_of
from loopwright.models.shapes import model_shape
from loopwright.testing.tiny import tiny_llama

TARGETS = ["q_proj", "v_proj", "down_proj"]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("base") / "model", initializer_range=0.3)


def written_by_peft(base: Path, folder: Path, **options: Any) -> Path:
    """An adapter that has an effect."""
    config = {"r": 4, "lora_alpha": 8, "target_modules": TARGETS, "task_type": "CAUSAL_LM"} | options
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(**config))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.05 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def kept(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_by_peft(base, tmp_path_factory.mktemp("adapter") / "plain")


@pytest.fixture
def adapter(kept: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return Path(shutil.copytree(kept, tmp_path / "adapter"))


@torch.no_grad()
def logits_of(model: Any) -> torch.Tensor:
    model.set_attn_implementation("eager")
    result: torch.Tensor = model(torch.arange(1, 20)[None]).logits
    return result


def ours(folder: Path) -> torch.Tensor:
    return logits_of(load_model(str(folder), cache=folder).model)


def pefts(base: Path, folder: Path) -> torch.Tensor:
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(folder))
    return logits_of(model.merge_and_unload())


def configure(folder: Path, **changes: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    "options",
    [
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "orthogonal"},
        {"use_rslora": True},
        {"layers_to_transform": [1]},
        {"target_modules": r".*layers\.0.*\.(q|v)_proj"},
        {"exclude_modules": ["v_proj"]},
        {"target_modules": "all-linear"},
    ],
    ids=str,
)
def test_a_plain_adapter_of_peft_is_merged_as_peft_merges_it(
    base: Path, tmp_path: Path, options: Mapping[str, Any]
) -> None:
    folder = written_by_peft(base, tmp_path / "adapter", **options)
    assert torch.allclose(ours(folder), pefts(base, folder), atol=1e-4)


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_an_adapter_that_has_changed_its_base_is_refused(base: Path, tmp_path: Path, init: str) -> None:
    folder = written_by_peft(base, tmp_path / "adapter", init_lora_weights=init)
    with pytest.raises(ModelError, match="is more than a plain LoRA: init_lora_weights is") as caught:
        load_model(str(folder), cache=tmp_path)
    assert "merge_and_unload" in caught.value.remedy


@pytest.mark.parametrize(
    ("change", "plain"),
    [
        ({"init_lora_weights": "pissa_niter_4"}, False),
        ({"init_lora_weights": "loftq"}, False),
        ({"loftq_config": {"loftq_bits": 4}}, False),
        ({"corda_config": {"corda_method": "ipm"}}, False),
        ({"eva_config": {"rho": 2.0}}, False),
        ({"lora_ga_config": {"stable_gamma": 16}}, False),
        ({"kasa_config": {"beta": 1e-4}}, False),
        ({"use_bdlora": {"nblocks": 2}}, False),
        ({"arrow_config": {"top_k": 3}}, False),
        ({"monteclora_config": {"x": 1}}, False),
        ({"use_qalora": True}, False),
        ({"config_of_tomorrow": 1, "use_tomorrow": True}, False),
        ({"velora_config": {"num_groups": 64}}, True),
        ({"lora_dropout": 0.5}, True),
        ({"loftq_config": None, "init_lora_weights": None}, True),
    ],
    ids=str,
)
def test_settings_beyond_w_and_b_times_a_are_refused(adapter: Path, change: Mapping[str, Any], plain: bool) -> None:
    configure(adapter, **change)
    if plain:
        load_model(str(adapter), cache=adapter)
        return
    with pytest.raises(ModelError, match="is more than a plain LoRA"):
        load_model(str(adapter), cache=adapter)


def _without(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if part not in name}


DAMAGES: dict[str, tuple[Callable[[Tensors], Tensors], Mapping[str, Any]]] = {
    "no tensors": (lambda tensors: {}, {}),
    "a layer less": (_without("layers.1"), {}),
    "a target less": (_without("q_proj"), {}),
    "B without A": (_without("layers.0.self_attn.q_proj.lora_A"), {}),
    "A without B": (_without("layers.0.self_attn.q_proj.lora_B"), {}),
    "no numbers": (lambda tensors: {name: torch.empty(0) for name in tensors}, {}),
    "another rank in B": (
        lambda tensors: {name: one[:, :3].contiguous() if "lora_B" in name else one for name, one in tensors.items()},
        {},
    ),
    "a rank that is not theirs": (lambda tensors: tensors, {"r": 8}),
    "rank 0": (lambda tensors: tensors, {"r": 0}),
}


@pytest.mark.parametrize(("change", "config"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_adapter_is_refused(
    adapter: Path, change: Callable[[Tensors], Tensors], config: Mapping[str, Any]
) -> None:
    file = adapter / "adapter_model.safetensors"
    save_file(change(load_file(file)), file)
    configure(adapter, **config)
    with pytest.raises(ModelError, match="is damaged: ") as caught:
        load_model(str(adapter), cache=adapter)
    assert "copy the whole adapter again" in caught.value.remedy


def test_an_adapter_without_a_tokenizer_takes_that_of_its_base(base: Path, adapter: Path) -> None:
    assert not (adapter / "tokenizer.json").exists()
    loaded = load_model(str(adapter), cache=adapter)
    assert loaded.tokenizer.name_or_path == str(base)


def test_a_config_alone_is_no_model(base: Path, adapter: Path) -> None:
    expected = ours(adapter)
    shutil.copy(base / "config.json", adapter / "config.json")
    assert is_adapter(adapter)
    assert torch.equal(ours(adapter), expected)


def test_a_folder_with_a_model_and_an_adapter_is_refused(base: Path, adapter: Path) -> None:
    shutil.copytree(base, adapter, dirs_exist_ok=True)
    with pytest.raises(ModelError, match="holds a model and an adapter"):
        load_model(str(adapter), cache=adapter)
    with pytest.raises(ModelError, match="holds a model and an adapter"):
        whole_source_of(str(adapter), adapter)
    with pytest.raises(ModelError, match="holds a model and an adapter"):
        _shape(adapter)


def test_a_base_that_has_moved_is_looked_for_where_the_adapter_says(base: Path, adapter: Path) -> None:
    expected = ours(adapter)
    configure(adapter, base_model_name_or_path=str(adapter / "gone"))
    for reading in (lambda: load_model(str(adapter), cache=adapter), lambda: _shape(adapter)):
        with pytest.raises(ModelError, match=r"the base model of the adapter in .* cannot be read") as caught:
            reading()
        assert f"as base_model_name_or_path into {adapter}/adapter_config.json" in caught.value.remedy
        assert "model.path" not in caught.value.remedy
    configure(adapter, base_model_name_or_path=str(base))
    assert torch.equal(ours(adapter), expected)


def _shape(folder: Path) -> None:
    with model_shape(str(folder), cache=folder, dtype="float32"):
        pass


def test_a_revision_of_a_base_that_is_no_folder_is_not_ignored(adapter: Path) -> None:
    configure(adapter, base_model_name_or_path="org/model", revision="v2")
    with pytest.raises(ModelError, match="the revision 'v2' of org/model"):
        base_of(str(adapter))
