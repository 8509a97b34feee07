"""Tells by the names of its files what a folder holds: a model, an adapter, a tokenizer. No file is opened."""

from __future__ import annotations

from pathlib import Path

MODEL_CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
"""The names under which transformers looks for weights. The first that is there counts."""


def weight_files(folder: Path) -> list[Path]:
    return next(filter(None, (sorted(folder.glob(pattern)) for pattern in WEIGHTS)), [])


def is_adapter(folder: Path) -> bool:
    """Whether it holds an adapter and no model. A config alone is no model: tools save it beside adapters."""
    return (folder / ADAPTER_CONFIG).is_file() and not weight_files(folder)


def is_model_and_adapter(folder: Path) -> bool:
    """Whether nobody can tell what is meant: the model, or the model with the adapter."""
    return (folder / ADAPTER_CONFIG).is_file() and bool(weight_files(folder))


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZER_FILES)
