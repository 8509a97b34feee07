"""Adapters of ranks: what is saved, published and exported is what one process has, and each resumes the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from made_groups import simple_groups
from ranked import PROBE, config_of, moments_in, one_process, several_ranks
from safetensors.torch import load_file

from loopwright.core.adapter_names import A, B
from loopwright.errors import CheckpointError

pytestmark = pytest.mark.real

LORA: dict[str, Any] = {"lora": {"rank": 4, "targets": ["q_proj", "down_proj"]}}


class Taken(dict[str, torch.Tensor]):
    """A `WeightSink` that keeps everything."""

    def begin(self, tensors: Mapping[str, Any]) -> None:
        pass

    def take(self, bucket: Mapping[str, torch.Tensor]) -> None:
        self |= {name: tensor.clone() for name, tensor in bucket.items()}


async def published(learner: Any) -> Taken:
    taken = Taken()
    await learner.publish(taken)
    return taken


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("first", [2, 1], ids=["two ranks, then one process", "one process, then two ranks"])
async def test_a_checkpoint_of_adapters_resumes_on_another_number_of_ranks(
    llama_folder: Path, tmp_path: Path, first: int
) -> None:
    ways: dict[int, Any] = {1: one_process, 2: several_ranks}
    saved, again, export = tmp_path / "saved", tmp_path / "again", tmp_path / "export"
    for folder in (saved, again, export):
        folder.mkdir()
    async with ways[first](config_of(llama_folder, tmp_path, ranks=first, **LORA), tmp_path) as learner:
        for step in range(2):
            await learner.step(simple_groups(step, count=4))
        await learner.save(saved)
        given, said = await published(learner), await learner.logprobs(PROBE)
    assert not (saved / "model.safetensors").exists()
    assert all(name.endswith((A, B)) for name in given)
    second = 3 - first
    async with ways[second](config_of(llama_folder, tmp_path, ranks=second, **LORA), tmp_path) as learner:
        await learner.load(saved)
        assert learner.version == 2
        assert same(await published(learner), given)
        assert await learner.logprobs(PROBE) == pytest.approx(said, abs=1e-5)
        await learner.save(again)
        await learner.export(export)
    adapters = [load_file(folder / "adapter_model.safetensors") for folder in (saved, again)]
    assert same(*adapters)
    assert same(moments_in(again), moments_in(saved))
    whole, base = load_file(export / "model.safetensors"), load_file(llama_folder / "model.safetensors")
    changed = {name for name in base if not torch.equal(whole[name], base[name])}
    assert changed == {f"{name.removesuffix(A)}.weight" for name in given if name.endswith(A)}


async def test_ranks_refuse_a_checkpoint_of_the_other_kind(llama_folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    async with one_process(config_of(llama_folder, tmp_path, ranks=1, **LORA), tmp_path) as learner:
        await learner.save(saved)
    async with several_ranks(config_of(llama_folder, tmp_path, ranks=2), tmp_path) as ranks:
        with pytest.raises(CheckpointError, match="holds adapters"):
            await ranks.load(saved)
