"""A model either runs here exactly, or is refused with a reason before anything starts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_gpu import DEVICE, Gpu
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from loopwright.errors import ModelError
from loopwright.models import plans
from loopwright.models.attention import NAME
from loopwright.models.lean import LeanForward
from loopwright.models.load import load_model
from loopwright.testing.tiny import MAX_CONTEXT, tiny_tokenizer

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tiny_llama_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(tiny_llama_folder, tmp_path / "model"))


def refused(folder: Path | str) -> ModelError:
    with pytest.raises(ModelError) as raised:
        load_model(str(folder), cache=Path("unused"))
    assert raised.value.remedy
    return raised.value


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def test_a_loaded_model_is_ready_for_engine_and_learner(tiny_llama_folder: Path) -> None:
    loaded = load_model(str(tiny_llama_folder), cache=tiny_llama_folder)
    assert not loaded.model.training
    assert all(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.model.dtype == torch.float32
    assert loaded.model.config._attn_implementation == NAME
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("19")) == "19"


@pytest.mark.parametrize(("wish", "given"), [(None, MAX_CONTEXT), (64, 64), (10 * MAX_CONTEXT, MAX_CONTEXT)])
def test_the_context_is_what_was_asked_for_but_never_more_than_the_model_has(
    tiny_llama_folder: Path, wish: int | None, given: int
) -> None:
    assert load_model(str(tiny_llama_folder), cache=tiny_llama_folder, max_context=wish).max_context == given


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    error = refused(tmp_path / "nowhere")
    assert "nowhere" in error.message
    assert "model.path" in error.remedy


def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()
    error = refused(folder)
    assert "has no tokenizer" in error.message
    assert "save_pretrained" in error.remedy


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", WEIGHTS])
def test_a_damaged_file(folder: Path, file: str) -> None:
    whole = (folder / file).read_bytes()
    (folder / file).write_bytes(whole[: len(whole) // 2])
    assert str(folder) in refused(folder).message


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    assert "weights" in refused(folder).message


def test_missing_weights_are_not_made_up(folder: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    change_weights(folder, lambda weights: weights.pop(name))
    assert name in refused(folder).message


def test_weights_of_another_shape(folder: Path) -> None:
    change_config(folder, intermediate_size=48)
    assert "weights" in refused(folder).message


def test_an_encoder_decoder(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "t5", "is_encoder_decoder": True}))
    error = refused(folder)
    assert "encoder-decoder" in error.message
    assert "decoder-only" in error.remedy


def test_layers_without_attention(folder: Path) -> None:
    change_config(folder, model_type="qwen3", layer_types=["linear_attention", "full_attention"])
    assert "linear_attention" in refused(folder).message


def test_attention_with_a_soft_cap(tmp_path: Path) -> None:
    """An architecture whose attention we would compute wrongly is caught by trying it."""
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Gemma2Config(vocab_size=len(tokenizer), num_key_value_heads=1, head_dim=16, **shape)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    error = refused(tmp_path)
    assert "softcap" in error.message
    assert "decoder-only" in error.remedy


def test_an_attention_that_computes_something_else_is_caught(
    tiny_llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    causal = plans._causal
    monkeypatch.setattr(plans, "_causal", lambda q, k, v, scaling, window: causal(q, k, v, 1.1 * scaling, window))
    assert "logits differ" in refused(tiny_llama_folder).message


def test_large_logits_may_differ_more(tiny_llama_folder: Path, tmp_path: Path) -> None:
    """What training drives logits to is no reason to refuse a model that was loaded before."""
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_folder)
    with torch.no_grad():
        model.model.norm.weight.mul_(1e5)
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    assert isinstance(load_model(str(tmp_path), cache=tmp_path).forward, LeanForward)


def test_a_window_that_is_not_kept_is_caught(tiny_sliding_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    causal = plans._causal
    monkeypatch.setattr(plans, "_causal", lambda q, k, v, scaling, window: causal(q, k, v, scaling, None))
    assert "logits differ" in refused(tiny_sliding_folder).message


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_whose_logits_are_scaled_is_refused_in_any_precision(tmp_path: Path, dtype: str) -> None:
    """Training computes logits from hidden states and head: with a factor between them, they would be wrong."""
    config = GraniteConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        logits_scaling=8.0,
    )
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="product of hidden states and head"):
        load_model(str(tmp_path), cache=tmp_path, dtype=dtype)


def test_weights_that_find_no_memory_on_a_device_say_how_much_they_want(tiny_llama_folder: Path) -> None:
    with (
        Gpu(limit=50_000),
        pytest.raises(ModelError, match=r"out of memory on gpu:0 while model .* 0\.00 GiB") as caught,
    ):
        load_model(str(tiny_llama_folder), cache=tiny_llama_folder, device=DEVICE)
    assert "choose a smaller model" in caught.value.remedy


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("unable to mmap 57033728 bytes from file <model.safetensors>: Cannot allocate memory (12)"),
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
    ],
    ids=["a file that is mapped", "Python", "the system"],
)
def test_weights_that_find_no_memory_while_they_are_read_are_not_called_missing(
    tiny_llama_folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", fails)
    with pytest.raises(
        ModelError, match=r"out of memory on the cpu .* is loaded, whose weights take 0.00 GiB"
    ) as caught:
        load_model(str(tiny_llama_folder), cache=tiny_llama_folder)
    assert "choose a smaller model" in caught.value.remedy
    assert "smollm2" not in caught.value.remedy
