"""Checkpoints continue bit for bit, damage is named, and other tools can load what was written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from made_groups import load_tiny, recipe, simple_groups, weights_of
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from loopwright.errors import CheckpointError
from loopwright.learn.exporting import write_model
from loopwright.learn.learner import TorchLearner
from loopwright.models.compute import ComputeThread
from loopwright.testing.tiny import tiny_llama, tiny_qwen3
from loopwright.types import Schedule

OPTIONS: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.01, "schedule": Schedule.COSINE, "warmup_steps": 1}


MakeLearner = Callable[[Path], TorchLearner]


@pytest.fixture
def make_learner() -> Iterator[MakeLearner]:
    """Learners of the model in a folder, in one compute thread."""
    with ComputeThread() as compute:
        yield lambda folder: TorchLearner(load_tiny(folder), recipe(**OPTIONS), compute)


def same_weights(one: TorchLearner, other: TorchLearner) -> bool:
    ours, theirs = weights_of(one._model), weights_of(other._model)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture
async def saved(make_learner: MakeLearner, llama_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint after two steps."""
    learner = make_learner(llama_folder)
    for step in range(2):
        await learner.step(simple_groups(step))
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    await learner.save(folder)
    return folder


async def test_a_loaded_learner_goes_on_bit_for_bit(
    make_learner: MakeLearner, llama_folder: Path, tmp_path: Path
) -> None:
    straight = make_learner(llama_folder)
    for step in range(2):
        await straight.step(simple_groups(step))
    await straight.save(tmp_path)
    torch_state = torch.get_rng_state()
    torch.rand(3)

    resumed = make_learner(llama_folder)
    await resumed.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert resumed.version == straight.version == 2
    assert same_weights(resumed, straight)
    for step in range(2, 4):
        assert await resumed.step(simple_groups(step)) == await straight.step(simple_groups(step))
        assert same_weights(resumed, straight)


async def test_loading_the_beginning_forgets_later_moments(
    make_learner: MakeLearner, llama_folder: Path, tmp_path: Path
) -> None:
    learner, fresh = make_learner(llama_folder), make_learner(llama_folder)
    await learner.save(tmp_path)
    await learner.step(simple_groups(0))
    await learner.load(tmp_path)
    assert learner.version == 0
    assert same_weights(learner, fresh)
    await learner.step(simple_groups(1))
    await fresh.step(simple_groups(1))
    assert same_weights(learner, fresh)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "learner.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "garbage"])
async def test_a_damaged_checkpoint_is_named(
    make_learner: MakeLearner, llama_folder: Path, saved: Path, name: str, damage: str
) -> None:
    path = saved / name
    whole = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "garbage": b"[1, 2]"}[damage])
    learner = make_learner(llama_folder)
    before = weights_of(learner._model)
    with pytest.raises(CheckpointError) as caught:
        await learner.load(saved)
    assert str(saved) in caught.value.message
    assert "--fresh" in caught.value.remedy
    assert all(torch.equal(p, before[n]) for n, p in learner._model.named_parameters()), "nothing was half loaded"


async def test_a_checkpoint_without_random_state_is_named(
    make_learner: MakeLearner, llama_folder: Path, saved: Path
) -> None:
    tensors = load_file(saved / "optimizer.safetensors")
    del tensors["torch_rng"]
    save_file(tensors, saved / "optimizer.safetensors")
    with pytest.raises(CheckpointError, match="torch_rng"):
        await make_learner(llama_folder).load(saved)


@pytest.mark.parametrize(
    ("build", "overrides"),
    [(tiny_qwen3, {}), (tiny_llama, {"num_hidden_layers": 1}), (tiny_llama, {"intermediate_size": 48})],
    ids=["architecture", "depth", "width"],
)
async def test_another_models_checkpoint_is_refused(
    make_learner: MakeLearner, saved: Path, tmp_path: Path, build: Any, overrides: dict[str, int]
) -> None:
    learner = make_learner(build(tmp_path / "other", **overrides))
    with pytest.raises(CheckpointError, match="belongs to another model"):
        await learner.load(saved)


async def test_export_and_checkpoint_load_in_transformers(
    make_learner: MakeLearner, llama_folder: Path, tmp_path: Path
) -> None:
    learner = make_learner(llama_folder)
    await learner.step(simple_groups())
    exported, checkpoint = tmp_path / "export", tmp_path / "checkpoint"
    for folder in (exported, checkpoint):
        folder.mkdir()
    await learner.export(exported)
    await learner.save(checkpoint)
    learner._model.set_attn_implementation("eager")
    ids = torch.arange(1, 20)[None]
    with torch.no_grad():
        ours = learner._model(ids).logits
        for folder in (exported, checkpoint):
            model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
            assert torch.allclose(model(ids).logits, ours, atol=1e-5)
            assert AutoTokenizer.from_pretrained(folder).encode("12+7") == learner._loaded.tokenizer.encode("12+7")
            assert "loopwright" not in json.dumps(json.loads((folder / "config.json").read_text()))


async def test_how_text_is_meant_to_be_generated_stays_with_the_model(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    """A server that is given the export stops at these tokens."""
    source, checkpoint, export = tiny_llama(tmp_path / "source"), tmp_path / "checkpoint", tmp_path / "export"
    # Some models come with settings that transformers would refuse to write.
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2], "temperature": 0.6}))
    checkpoint.mkdir()
    learner = make_learner(source)
    await learner.save(checkpoint)
    await learner.export(export)
    write_model(checkpoint, tmp_path / "written", "float32")
    for folder in (checkpoint, export, tmp_path / "written"):
        told = json.loads((folder / "generation_config.json").read_text())
        assert (told["eos_token_id"], told["temperature"]) == ([1, 2], 0.6)
