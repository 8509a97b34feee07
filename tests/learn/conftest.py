"""Tiny models of four kinds, in turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopwright.testing.tiny import tiny_llama, tiny_qwen3

SPREAD = 0.1
"""Initial weights this wide make attention matter; wider ones would bring float32's rounding near the tolerances."""

MODELS: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "llama": (tiny_llama, {}),
    "biased": (tiny_llama, {"attention_bias": True, "mlp_bias": True}),
    "qwen3": (tiny_qwen3, {"tie_word_embeddings": False}),
    "sliding": (
        tiny_qwen3,
        {"use_sliding_window": True, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    ),
}


@pytest.fixture(scope="session", params=MODELS)
def model_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """Each kind of model in turn."""
    build, overrides = MODELS[request.param]
    return build(tmp_path_factory.mktemp(request.param), initializer_range=SPREAD, **overrides)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"), initializer_range=SPREAD)
