"""Which folders hold the same model."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.models import digest
from loopwright.models.digest import model_digest


def written(folder: Path, weights: bytes = bytes(200_000), **config: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8, **config}))
    header = b'{"a":{"dtype":"F32","shape":[50000],"data_offsets":[0,200000]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + weights)
    return folder


def test_copies_are_the_same_whatever_their_folder_and_transformers_are_called(tmp_path: Path) -> None:
    one = written(tmp_path / "one", transformers_version="4.1")
    two = written(tmp_path / "two" / "export", transformers_version="4.2")
    (two / "tokenizer_config.json").write_text("{}")
    assert model_digest(one) == model_digest(two) is not None


def _train(folder: Path) -> None:
    _change(folder / "model.safetensors", lambda data: data[:-200_000] + b"\x01" * 200_000)


def _reshape(folder: Path) -> None:
    _change(folder / "model.safetensors", lambda data: data.replace(b"[50000]", b"[5,10000]"[:7]))


def _retype(folder: Path) -> None:
    _change(folder / "model.safetensors", lambda data: data.replace(b"F32", b"I32"))


def _lengthen(folder: Path) -> None:
    _change(folder / "model.safetensors", lambda data: data + b"\x00")


def _configure(folder: Path) -> None:
    _change(folder / "config.json", lambda data: data.replace(b"8", b"9"))


def _change(file: Path, change: Callable[[bytes], bytes]) -> None:
    file.write_bytes(change(file.read_bytes()))


@pytest.mark.parametrize("change", [_train, _reshape, _retype, _lengthen, _configure])
def test_another_model_has_another_digest(tmp_path: Path, change: Callable[[Path], None]) -> None:
    one = written(tmp_path / "one")
    two = Path(shutil.copytree(one, tmp_path / "two"))
    change(two)
    assert model_digest(one) != model_digest(two)


def test_what_is_no_folder_with_a_model_has_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert model_digest(tmp_path) is None
    assert model_digest(tmp_path / "smollm2") is None


def test_a_sample_of_a_large_file_is_read_and_not_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "one")
    with (folder / "model.safetensors").open("r+b") as opened:
        opened.truncate(50 << 30)
    before = time.monotonic()
    assert model_digest(folder) is not None
    assert time.monotonic() - before < 5
    assert digest.SAMPLES * digest.SAMPLE_BYTES <= 1 << 20
