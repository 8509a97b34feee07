"""The C source is compiled once for this processor; who cannot compile is told why, and computes by torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.models.load import load_model
from loopwright.models.native import library as module
from loopwright.models.native import step
from loopwright.models.native.library import Library, Unavailable, library

QUICK = ("-O0", "-fopenmp", "-fPIC", "-shared")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What earlier calls have found."""
    library.cache_clear()
    yield
    library.cache_clear()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where compiled code is kept beside the package."""
    monkeypatch.setattr(module, "BESIDE_BYTECODE", tmp_path / "package")
    return tmp_path / "package"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run."""
    commands: list[list[str]] = []
    run = subprocess.run

    def counted(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    return commands


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Let there be no other compiler than this."""
    folder.mkdir(exist_ok=True)
    (folder / "gcc").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "gcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_it_is_compiled_once(place: Path, compiled: list[list[str]]) -> None:
    for _ in range(2):
        assert isinstance(library(None, QUICK), Library)
        library.cache_clear()
    assert len(compiled) == 1
    assert [file.suffix for file in place.iterdir()] == [".so"]


def test_another_processor_needs_another(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(None, QUICK)
    library.cache_clear()
    monkeypatch.setattr(module, "_processor", lambda: ["another one"])
    library(None, QUICK)
    assert len(list(place.iterdir())) == 2


def test_if_the_package_cannot_keep_it_another_folder_does(place: Path, tmp_path: Path) -> None:
    place.write_text("not a folder")
    assert isinstance(library(tmp_path / "cache", QUICK), Library)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_without_a_compiler_it_says_so(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert library(None, QUICK) == Unavailable("no C compiler (gcc or cc) was found")


def test_what_is_compiled_is_used_also_where_the_compiler_is_gone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(None, QUICK)
    library.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert isinstance(library(None, QUICK), Library)


def test_what_is_damaged_is_compiled_again(place: Path) -> None:
    library(None, QUICK)
    library.cache_clear()
    [file] = place.iterdir()
    # Another file: the old one is mapped into this process.
    file.unlink()
    file.write_bytes(b"")
    assert isinstance(library(None, QUICK), Library)


def test_what_others_may_write_to_is_not_loaded(place: Path, compiled: list[list[str]]) -> None:
    library(None, QUICK)
    library.cache_clear()
    [file] = place.iterdir()
    file.chmod(0o777)
    assert isinstance(library(None, QUICK), Library)
    assert len(compiled) == 2
    assert file.stat().st_mode & 0o777 == 0o755


def test_a_compiler_may_speak_any_language(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, tmp_path / "bin", r"printf 'In function x\nerror: gr\374n\n' >&2; exit 1")
    assert library(None, QUICK) == Unavailable("the C compiler failed: error: gr\ufffdn")


def test_a_compiler_that_fails_is_quoted(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, tmp_path / "bin", "echo 'error: no OpenMP here' >&2; exit 1")
    assert library(tmp_path / "cache", QUICK) == Unavailable("the C compiler failed: error: no OpenMP here")
    assert not list(place.iterdir())


def test_what_cannot_be_loaded_is_not_used(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, tmp_path / "bin", 'for last; do :; done; echo rubbish > "$last"')
    found = library(None, QUICK)
    assert isinstance(found, Unavailable)
    assert os.fspath(place) in found.reason


def test_a_model_is_loaded_all_the_same(tiny_llama_folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert load_model(str(tiny_llama_folder), cache=tiny_llama_folder).forward.native() is None


def test_no_compiler_may_bring_another_openmp(place: Path) -> None:
    found = library(None, (*QUICK, "-D__clang__"))
    assert isinstance(found, Unavailable)
    assert "clang" in found.reason


def test_a_model_may_be_loaded_without_native_steps(tiny_llama_folder: Path) -> None:
    assert load_model(str(tiny_llama_folder), cache=tiny_llama_folder).forward.native() is not None
    assert load_model(str(tiny_llama_folder), cache=tiny_llama_folder, native=False).forward.native() is None


def test_a_model_without_memory_for_the_proof_decodes_by_torch(
    tiny_llama_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(step, "free_memory", lambda: 1000)
    assert load_model(str(tiny_llama_folder), cache=tiny_llama_folder).forward.native() is None
    assert "no memory to prove native decode steps" in caplog.text
