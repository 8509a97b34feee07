"""A weight file holds the bits that it was given (W3), and is read whole or not at all."""

from __future__ import annotations

import json
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bits import same_bits, some_tensors, tensor
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from loopwright.errors import WeightsError
from loopwright.models.weight_files import (
    WeightBytes,
    WeightFileWriter,
    checked_weights,
    checksum_text,
    mapped,
    read_weights,
    spec_of,
)
from loopwright.testing.weight_file import weight_file
from loopwright.types import TensorSpec, WeightFile


@given(some_tensors(), st.booleans())
def test_a_file_changes_no_bit(tensors: dict[str, torch.Tensor], has_spare: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file, spare = Path(folder) / "new.safetensors", Path(folder) / "old.safetensors"
        if has_spare:
            weight_file({name: torch.zeros_like(one) for name, one in tensors.items()}, spare)
        writer = WeightFileWriter(file, spare)
        writer.begin({name: spec_of(one) for name, one in tensors.items()})
        for name, one in tensors.items():
            writer.take({name: one})
        manifest = writer.finish()
        assert same_bits(read_weights(manifest), tensors)
        assert same_bits(load_file(file), tensors)
        assert [file.name] == [one.name for one in Path(folder).iterdir()]


@given(some_tensors())
def test_bytes_in_memory_change_no_bit(tensors: dict[str, torch.Tensor]) -> None:
    """Ray gives memory that cannot be written."""
    with tempfile.TemporaryDirectory() as folder:
        manifest = weight_file(tensors, Path(folder) / "w")
        data = np.frombuffer(Path(manifest.path).read_bytes(), np.uint8)
    assert not data.flags.writeable
    assert same_bits(checked_weights(WeightBytes(manifest, data)), tensors)


@pytest.mark.parametrize("harm", ["size", "checksum", "tensors", "no weight file"])
def test_bytes_that_are_not_those_of_their_manifest_are_refused(tmp_path: Path, harm: str) -> None:
    manifest = weight_file({"a": torch.ones(3)}, tmp_path / "w")
    data = np.fromfile(manifest.path, np.uint8)
    match harm:
        case "size":
            data = data[:-1]
        case "checksum":
            data[-1] ^= 1
        case "tensors":
            manifest = replace(manifest, tensors={"b": TensorSpec("F32", (3,))})
        case _:
            data[:] = 255
            manifest = replace(manifest, checksum=checksum_text(zlib.crc32(data.data)))
    with pytest.raises(WeightsError, match="nothing was changed"):
        checked_weights(WeightBytes(manifest, data))


def test_a_spare_file_gives_its_memory_and_another_size_does_not(tmp_path: Path) -> None:
    tensors = {"a": tensor(torch.float32, (7, 3))}
    spare, other = tmp_path / "spare", tmp_path / "other"
    weight_file({"a": torch.zeros(7, 3)}, spare)
    weight_file({"a": torch.zeros(7, 4)}, other)
    memory, mapping = spare.stat().st_ino, mapped(weight_file({"a": torch.ones(7, 4)}, other))

    def written(name: str, spare: Path) -> WeightFile:
        writer = WeightFileWriter(tmp_path / name, spare)
        writer.begin({name: spec_of(one) for name, one in tensors.items()})
        writer.take(tensors)
        return writer.finish()

    assert Path(written("one", spare).path).stat().st_ino == memory
    assert same_bits(read_weights(written("two", other)), tensors)
    # Whoever still reads the file of another size is not killed by it.
    assert mapping.sum() > 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.parametrize(
    ("taken", "words"),
    [
        ({"b": torch.zeros(2)}, "out of its order"),
        ({"a": torch.zeros(3)}, "not as it was announced"),
        ({"a": torch.zeros(2)}, "1 tensors are missing"),
    ],
)
def test_tensors_must_come_as_they_were_announced(tmp_path: Path, taken: dict[str, torch.Tensor], words: str) -> None:
    writer = WeightFileWriter(tmp_path / "w")
    writer.begin({"a": TensorSpec("F32", (2,)), "b": TensorSpec("F32", (2,))})
    with pytest.raises(RuntimeError, match=words):
        _all_taken(writer, taken)
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def _all_taken(writer: WeightFileWriter, bucket: dict[str, torch.Tensor]) -> WeightFile:
    writer.take(bucket)
    return writer.finish()


def made(file: Path, header: object, data: bytes = b"", **manifest: object) -> WeightFile:
    """A file with any header, whose size and checksum are right."""
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    content = len(text).to_bytes(8, "little") + text + data
    file.write_bytes(content)
    tensors = {"a": TensorSpec("F32", (2,))}
    return replace(WeightFile(str(file), len(content), checksum_text(zlib.crc32(content)), tensors), **manifest)  # type: ignore[arg-type]


GOOD = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


@pytest.mark.parametrize(
    ("header", "data", "manifest", "words"),
    [
        (b"no json", b"", {}, "no weight file"),
        ([1], b"", {}, "no weight file"),
        ({"a": {"dtype": "F32"}}, b"", {}, "no weight file"),
        ({"a": {**GOOD["a"], "data_offsets": []}}, bytes(8), {}, "no weight file"),
        ({"b": GOOD["a"]}, bytes(8), {}, "not those of its manifest"),
        ({"a": {**GOOD["a"], "shape": [1, 2]}}, bytes(8), {}, "not those of its manifest"),
        ({"a": {**GOOD["a"], "dtype": "I64"}}, bytes(8), {"tensors": {"a": TensorSpec("I64", (2,))}}, "the type I64"),
        (GOOD, bytes(7), {}, "fewer bytes"),
        (GOOD, bytes(8), {"checksum": "crc32:00000000"}, "its checksum is"),
        (GOOD, bytes(8), {"bytes": 12}, "bytes instead of 12"),
    ],
)
def test_what_is_not_as_its_manifest_says_is_refused(
    tmp_path: Path, header: object, data: bytes, manifest: dict[str, object], words: str
) -> None:
    with pytest.raises(WeightsError, match=words) as refused:
        read_weights(made(tmp_path / "w", header, data, **manifest))
    assert "nothing was changed" in refused.value.message
    assert read_weights(made(tmp_path / "w", GOOD, bytes(8))).keys() == {"a"}
