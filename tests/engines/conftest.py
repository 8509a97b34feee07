"""A tiny Llama for the engine, and the plain one that it is measured by."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_model import PlainModel, put

from loopwright.engines import supervised
from loopwright.models.load import LoadedModel, load_model

VERSIONS = 3


@pytest.fixture(scope="session")
def plain(tiny_llama_folder: Path) -> PlainModel:
    return PlainModel(tiny_llama_folder, VERSIONS)


@pytest.fixture(scope="session")
def _loaded_once(tiny_llama_folder: Path) -> LoadedModel:
    return load_model(str(tiny_llama_folder), cache=tiny_llama_folder)


@pytest.fixture
def loaded(_loaded_once: LoadedModel, plain: PlainModel) -> LoadedModel:
    """The model under its first weights, whatever the test before has put into it."""
    put(_loaded_once.model, plain.versions[0])
    return _loaded_once


@pytest.fixture
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that died are started again without a pause."""
    monkeypatch.setattr(supervised, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(supervised, "LAST_WORDS_SECONDS", 0.01)
