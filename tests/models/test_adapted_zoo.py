"""Models of many kinds get adapters, or say before the first step that they cannot."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import save_file
from zoo import CONTEXT, EXPERTS, ZOO, Kind, build, plain_model

from loopwright.errors import ConfigError
from loopwright.learn.lora import AdaptedModel
from loopwright.models.adapters import AdapterShape
from loopwright.models.load import LoadedModel, load_model
from loopwright.testing.tiny import tiny_llama

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
DENSE_FIRST = Kind("qwen3_moe", EXPERTS | {"mlp_only_layers": [0]})
MIXTRAL = Kind("mixtral", {"num_local_experts": 4})


def loaded_of(folder: Path) -> LoadedModel:
    return load_model(str(folder), cache=folder, max_context=CONTEXT)


def adapted_of(loaded: LoadedModel, targets: tuple[str, ...] | None = None) -> AdaptedModel:
    return AdaptedModel(loaded, AdapterShape(4, 8, targets), 7)


def saved(adapted: AdaptedModel, folder: Path) -> Path:
    """A checkpoint of adapters that have an effect."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: matrix.detach() + 0.1 * torch.randn(matrix.shape, generator=generator)
        for name, matrix in adapted.parameters.items()
    }
    save_file(tensors, folder / adapted.file)
    adapted.describe(folder)
    return folder


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(torch.arange(1, 20)[None]).logits
    return result


@pytest.mark.parametrize("kind", [ZOO["qwen3 moe"], MIXTRAL], ids=["qwen3 moe", "mixtral"])
def test_a_mixture_of_experts_trains_its_attention_and_its_checkpoint_loads_in_peft(tmp_path: Path, kind: Kind) -> None:
    folder = build(kind, tmp_path / "model")
    adapted = adapted_of(loaded_of(folder))
    assert {name.split(".")[-3] for name in adapted.parameters} == ATTENTION
    checkpoint = saved(adapted, tmp_path / "saved")
    adapted.check(checkpoint)
    merged = loaded_of(checkpoint).model
    merged.set_attn_implementation("eager")
    base = plain_model(kind, folder)
    plain = logits_of(base)
    theirs = logits_of(PeftModel.from_pretrained(base, str(checkpoint)))
    assert torch.allclose(logits_of(merged), theirs, atol=1e-4)
    assert not torch.allclose(plain, theirs, atol=1e-2)


def test_the_attention_of_a_mixture_with_dense_layers_can_be_named(tmp_path: Path) -> None:
    adapted = adapted_of(loaded_of(build(DENSE_FIRST, tmp_path)), tuple(ATTENTION))
    assert {name.split(".")[-3] for name in adapted.parameters} == ATTENTION


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
@pytest.mark.parametrize(
    ("kind", "targets", "reason"),
    [
        (DENSE_FIRST, None, "which is no linear layer"),
        (DENSE_FIRST, ("gate_proj",), "peft cannot put adapters into this model"),
        (ZOO["gpt2"], None, "no layer of a gpt2 model can have an adapter"),
        (ZOO["gpt2"], ("c_attn",), "no layer of a gpt2 model can have an adapter"),
    ],
)
def test_a_model_that_cannot_be_adapted_is_refused_before_the_first_step(
    tmp_path: Path, kind: Kind, targets: tuple[str, ...] | None, reason: str
) -> None:
    loaded = loaded_of(build(kind, tmp_path))
    with pytest.raises(ConfigError, match=reason) as caught:
        adapted_of(loaded, targets)
    assert "learner.lora" in caught.value.remedy


def test_the_base_is_named_by_a_path_that_holds_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_llama(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint = saved(adapted_of(loaded_of(Path("model"))), tmp_path / "saved")
    told = json.loads((checkpoint / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == str(folder.resolve())
