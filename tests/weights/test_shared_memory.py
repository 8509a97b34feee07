"""Weights through shared memory: whole and exact, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from teacher import Teacher

from loopwright.engines.torch.engine import TorchEngine
from loopwright.errors import WeightsError
from loopwright.models.weight_files import WeightFileWriter, read_weights
from loopwright.testing.weight_file import weight_file
from loopwright.types import GenerateRequest, Sampling, WeightFile
from loopwright.weights.proof import WeightProof
from loopwright.weights.shared_memory import SharedMemoryWeights


def parameters(engine: TorchEngine) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in engine._model.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def publisher(teacher: Any, engine: TorchEngine, folder: Path) -> SharedMemoryWeights:
    return SharedMemoryWeights(teacher, engine, folder, WeightProof(teacher, 300))


async def test_what_the_learner_has_is_what_the_engine_gets(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path
) -> None:
    weights = publisher(teacher, engine, tmp_path)
    for version in (1, 2, 3):
        teacher.step()
        await weights.publish(version)
        assert same(parameters(engine), {n: p.detach() for n, p in teacher.model.named_parameters()})
        assert engine.version == version
        # The present version, and the memory for the next.
        kept = [f"weights-{one}.safetensors" for one in (version - 1, version) if one]
        assert sorted(os.listdir(tmp_path)) == kept
    sampled = await engine.generate(GenerateRequest("r", (5, 6, 7), Sampling(max_new_tokens=4)))
    assert sampled.versions == (3,) * 4


async def test_what_an_engine_reads_just_now_is_left_alone(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path
) -> None:
    """SGLang reads a folder beside the file. An engine that comes back may do so at any time."""
    (tmp_path / ".weights-1-abc").mkdir()
    await publisher(teacher, engine, tmp_path).publish(1)
    assert sorted(os.listdir(tmp_path)) == [".weights-1-abc", "weights-1.safetensors"]


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("harm", "words"), [(Path.unlink, "No such file"), (damage, "checksum"), (cut, "bytes instead of")]
)
async def test_a_file_that_is_gone_cut_or_damaged_changes_nothing(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path, harm: Callable[[Path], None], words: str
) -> None:
    teacher.step()
    manifest = weight_file(dict(teacher.model.named_parameters()), tmp_path / "w.safetensors")
    harm(Path(manifest.path))
    before = parameters(engine)
    with pytest.raises(WeightsError, match=words):
        await engine.load(1, manifest)
    assert same(parameters(engine), before)
    assert engine.version == 0


async def test_a_failed_update_leaves_the_old_file_for_engines_that_start_again(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = publisher(teacher, engine, tmp_path)
    await weights.publish(1)
    finish = WeightFileWriter.finish

    def damaged(self: WeightFileWriter) -> WeightFile:
        manifest = finish(self)
        damage(Path(manifest.path))
        return manifest

    monkeypatch.setattr(WeightFileWriter, "finish", damaged)
    with pytest.raises(WeightsError):
        await weights.publish(2)
    assert (tmp_path / "weights-1.safetensors").exists()
    assert engine.version == 1


async def test_two_files_are_used_in_turn(teacher: Teacher, engine: TorchEngine, tmp_path: Path) -> None:
    """The memory of the version before the present one is written again, and never that of the present one."""
    weights, memory = publisher(teacher, engine, tmp_path), []
    for version in (1, 2, 3, 4):
        teacher.step()
        await weights.publish(version)
        memory.append((tmp_path / f"weights-{version}.safetensors").stat().st_ino)
    assert memory[0] == memory[2] != memory[1] == memory[3]
    # The same version again, as after a resume: its file must not become the memory for the next.
    for version in (4, 5, 6):
        await weights.publish(version)
        assert same(parameters(engine), {n: p.detach() for n, p in teacher.model.named_parameters()})
        assert (tmp_path / f"weights-{version}.safetensors").exists()


async def test_a_full_disk_is_a_clear_error_and_leaves_no_half_file(
    teacher: Teacher, engine: TorchEngine, tmp_path: Path
) -> None:
    (tmp_path / ".weights-1.safetensors.part").symlink_to("/dev/full")
    with pytest.raises(WeightsError, match="No space left on device") as caught:
        await publisher(teacher, engine, tmp_path).publish(1)
    assert "free some space" in caught.value.remedy
    assert os.listdir(tmp_path) == []
    assert engine.version == 0


def test_a_manifest_says_what_is_in_the_file(teacher: Teacher, tmp_path: Path) -> None:
    manifest = weight_file(dict(teacher.model.named_parameters()), tmp_path / "w.safetensors")
    shapes = {name: tuple(p.shape) for name, p in teacher.model.named_parameters()}
    assert {name: spec.shape for name, spec in manifest.tensors.items()} == shapes
    assert {spec.dtype for spec in manifest.tensors.values()} == {"F32"}
    assert read_weights(manifest).keys() == shapes.keys()
