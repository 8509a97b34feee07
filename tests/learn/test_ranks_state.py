"""Checkpoints of ranks: any number of ranks, and one process, go on from them with the same bits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from made_groups import simple_groups
from ranked import PROBE, config_of, moments_in, one_process, several_ranks
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from loopwright.errors import CheckpointError
from loopwright.models.weight_files import spec_of
from loopwright.types import TensorSpec

pytestmark = pytest.mark.real


def require_same(mine: Path, other: Path) -> None:
    for tensors in (
        (load_file(mine / "model.safetensors"), load_file(other / "model.safetensors")),
        (moments_in(mine), moments_in(other)),
    ):
        assert tensors[0].keys() == tensors[1].keys()
        assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_two_ranks_then_one_process_then_two_ranks_keep_every_bit(
    llama_folder: Path, tmp_path: Path, dtype: str
) -> None:
    folders = [tmp_path / name for name in ("two", "one", "again")]
    for folder in folders:
        folder.mkdir()
    two = config_of(llama_folder, tmp_path, ranks=2, dtype=dtype)
    one = config_of(llama_folder, tmp_path, ranks=1, dtype=dtype)
    async with several_ranks(two, tmp_path) as learner:
        for seed in range(2):
            await learner.step(simple_groups(seed))
        await learner.save(folders[0])
        said = await learner.logprobs(PROBE)
        expected = await learner.step(simple_groups(7))
    async with one_process(one, tmp_path) as alone:
        await alone.load(folders[0])
        assert alone.version == 2
        await alone.save(folders[1])
    require_same(folders[1], folders[0])
    async with several_ranks(two, tmp_path) as learner:
        await learner.load(folders[1])
        assert learner.version == 2
        await learner.save(folders[2])
        assert await learner.logprobs(PROBE) == said
        assert (await learner.step(simple_groups(7))).metrics["grad_norm"] == expected.metrics["grad_norm"]
        # What was loaded last counts: a learner may go back.
        await learner.load(folders[0])
        assert await learner.logprobs(PROBE) == said
    require_same(folders[2], folders[0])
    assert json.loads((folders[0] / "learner.json").read_text())["ranks"] == 2
    assert [file.suffix for file in folders[0].rglob("*") if file.suffix in (".pt", ".pkl", ".metadata")] == []


class Collected:
    """A WeightSink that keeps copies."""

    def __init__(self) -> None:
        self.specs: Mapping[str, TensorSpec] = {}
        self.buckets: list[dict[str, torch.Tensor]] = []

    def begin(self, tensors: Mapping[str, TensorSpec]) -> None:
        self.specs = tensors

    def take(self, bucket: Mapping[str, Any]) -> None:
        self.buckets.append({name: tensor.clone() for name, tensor in bucket.items()})

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: tensor for bucket in self.buckets for name, tensor in bucket.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_what_ranks_publish_is_what_they_save_rounded_once(
    llama_folder: Path, tmp_path: Path, dtype: str
) -> None:
    saved, sink, rounded = tmp_path / "saved", Collected(), getattr(torch, dtype)
    saved.mkdir()
    source = shutil.copytree(llama_folder, tmp_path / "source")
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    async with several_ranks(config_of(source, tmp_path, ranks=2, dtype=dtype), tmp_path) as learner:
        await learner.step(simple_groups())
        await learner.save(saved)
        await learner.publish(sink)
        await learner.export(tmp_path / "export")
    weights = load_file(saved / "model.safetensors")
    assert list(sink.tensors) == list(sink.specs)
    for published in (sink.tensors, load_file(tmp_path / "export" / "model.safetensors")):
        assert published.keys() == weights.keys()
        assert all(torch.equal(published[name], tensor.to(rounded)) for name, tensor in weights.items())
    assert all(sink.specs[name] == spec_of(tensor) for name, tensor in sink.tensors.items())
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "export").dtype == rounded
    for folder in (saved, tmp_path / "export"):
        assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [1, 2]


async def test_a_damaged_checkpoint_of_ranks_is_refused(llama_folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    async with several_ranks(config_of(llama_folder, tmp_path, ranks=2), tmp_path) as learner:
        await learner.step(simple_groups())
        await learner.save(saved)
    damaged = {
        "no part of one rank": lambda folder: next((folder / "optimizer").iterdir()).unlink(),
        "no file of weights": lambda folder: (folder / "model.safetensors").unlink(),
        "no version": lambda folder: (folder / "learner.json").write_text("{}"),
    }
    async with one_process(config_of(llama_folder, tmp_path, ranks=1), tmp_path) as alone:
        for name, damage in damaged.items():
            folder = tmp_path / name
            shutil.copytree(saved, folder)
            damage(folder)
            with pytest.raises(CheckpointError, match="cannot be read"):
                await alone.load(folder)
