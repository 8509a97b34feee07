"""The optimiser moves float32 weights also where the model computes in half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from made_groups import learner_of, load_tiny, simple_groups, weights_of
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from loopwright.errors import CheckpointError
from loopwright.learn.learner import TorchLearner
from loopwright.learn.master import MasterWeights
from loopwright.models.load import load_model
from loopwright.models.weight_files import read_weights
from loopwright.testing.weight_file import weight_file

LR = 2e-6
"""AdamW moves a weight by about this much: far below what bfloat16 can tell from weights of 0.1."""


def half_learner(folder: Path, **overrides: Any) -> TorchLearner:
    loaded = load_model(str(folder), cache=folder, dtype="bfloat16")
    return learner_of(loaded, **{"lr": LR, "steps": 1000, **overrides})


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def masters_of(learner: TorchLearner) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in learner._weights.named.items()}


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> float:
    """The share of numbers that changed."""
    changed = sum(int((before[name] != after[name]).sum()) for name in before)
    return changed / sum(weight.numel() for weight in before.values())


def test_a_model_in_bfloat16_learns_from_updates_that_it_could_not_hold(llama_folder: Path) -> None:
    learner = half_learner(llama_folder)
    start, masters = weights_of(learner._model), masters_of(learner)
    learner._step(simple_groups())
    assert moved(masters, masters_of(learner)) > 0.5
    assert moved(start, weights_of(learner._model)) < 0.05, "one such update is rounded away"
    for _ in range(60):
        learner._step(simple_groups())
    assert moved(start, weights_of(learner._model)) > 0.1, "many of them are not"


def test_a_model_that_is_its_own_master_in_bfloat16_would_not(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other half of the claim above."""
    monkeypatch.setattr("loopwright.learn.master.HALF", ())
    learner = half_learner(llama_folder)
    start = weights_of(learner._model)
    for _ in range(61):
        learner._step(simple_groups())
    assert moved(start, weights_of(learner._model)) < 0.05


def test_what_a_model_computes_with_is_its_master_rounded(llama_folder: Path) -> None:
    learner = half_learner(llama_folder, lr=1e-3)
    for step in range(2):
        learner._step(simple_groups(step))
    masters = learner._weights.named
    assert {weight.dtype for weight in masters.values()} == {torch.float32}
    assert {parameter.dtype for parameter in learner._model.parameters()} == {torch.bfloat16}
    assert equal(weights_of(learner._model), {name: weight.bfloat16() for name, weight in masters.items()})


def test_gradients_of_micro_batches_add_up_in_float32(llama_folder: Path) -> None:
    """In bfloat16 the 1,000th of many equal gradients would be lost."""
    model = load_model(str(llama_folder), cache=llama_folder, dtype="bfloat16").model
    weights = MasterWeights(dict(model.named_parameters()))
    for _ in range(1000):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        weights.gather_gradients()
    for weight in weights.named.values():
        assert weight.grad is not None
        assert torch.equal(weight.grad, torch.full_like(weight, 1000.0))
    assert all(parameter.grad is None for parameter in model.parameters())
    weights.forget_gradients()
    assert all(weight.grad is None for weight in weights.named.values())


def test_a_model_in_float32_is_its_own_master(llama_folder: Path) -> None:
    learner = learner_of(load_tiny(llama_folder))
    own = dict(learner._model.named_parameters())
    assert learner._weights.named.keys() == own.keys()
    assert all(learner._weights.named[name] is parameter for name, parameter in own.items())
    assert learner._weights._copies == []


def test_a_learner_in_bfloat16_goes_on_bit_for_bit(llama_folder: Path, tmp_path: Path) -> None:
    straight, resumed = half_learner(llama_folder), half_learner(llama_folder)
    for step in range(2):
        straight._step(simple_groups(step))
    straight._save(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert equal(saved, masters_of(straight))
    assert not equal(saved, {name: weight.bfloat16().float() for name, weight in saved.items()}), "more than the model"

    resumed._version = resumed._load(tmp_path)
    for step in range(2, 4):
        assert equal(masters_of(resumed), masters_of(straight))
        assert equal(weights_of(resumed._model), weights_of(straight._model))
        assert resumed._step(simple_groups(step)) == straight._step(simple_groups(step))


def test_whoever_loads_a_checkpoint_or_an_export_or_is_sent_weights_has_the_same_model(
    llama_folder: Path, tmp_path: Path
) -> None:
    learner = half_learner(llama_folder, lr=1e-3)
    learner._step(simple_groups())
    ours = weights_of(learner._model)
    checkpoint, export = tmp_path / "checkpoint", tmp_path / "export"
    for folder in (checkpoint, export):
        folder.mkdir()
    learner._save(checkpoint)
    learner._trained.export(export)
    for folder in (checkpoint, export):
        assert equal(weights_of(load_model(str(folder), cache=folder, dtype="bfloat16").model), ours)
        assert equal(weights_of(AutoModelForCausalLM.from_pretrained(folder)), ours), "its config.json says so"
    assert equal(
        dict(read_weights(weight_file(dict(learner._model.named_parameters()), tmp_path / "w.safetensors"))), ours
    )


def test_a_checkpoint_whose_weights_were_rounded_is_refused(llama_folder: Path, tmp_path: Path) -> None:
    """Earlier versions saved the model's own numbers."""
    learner = half_learner(llama_folder)
    learner._step(simple_groups())
    learner._save(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({name: weight.bfloat16() for name, weight in load_file(file).items()}, file)
    other = half_learner(llama_folder)
    before, copies = masters_of(other), weights_of(other._model)
    with pytest.raises(CheckpointError, match="as bfloat16, and they are kept as float32") as caught:
        other._load(tmp_path)
    assert "model.path" in caught.value.remedy
    assert equal(masters_of(other), before)
    assert equal(weights_of(other._model), copies)
