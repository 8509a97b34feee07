"""What is below an adapter: the whole model that it was trained on, and adapters that are merged into that model first.

An adapter is worth nothing with another W, and loads without a complaint. So a digest of the base is kept beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from transformers.utils import CONFIG_NAME, cached_file

from loopwright.config.model_folders import has_tokenizer, is_adapter, is_model_and_adapter
from loopwright.errors import ModelError
from loopwright.models.adapter_files import BASE, CONFIG, TENSORS, SavedAdapter, read_adapter
from loopwright.models.digest import combined_digest, model_digest


def base_of(source: str) -> tuple[str, tuple[SavedAdapter, ...]]:
    """The whole model that `source` leads to, and the adapters to merge into it, in this order. An adapter's base may
    have been an adapter itself."""
    adapters: list[SavedAdapter] = []
    while is_adapter(Path(source)):
        if source in [adapter.folder for adapter in adapters]:
            raise ModelError(f"the adapter in {source} is its own base", remedy=f"name its base in its {CONFIG}")
        adapters.insert(0, read_adapter(source))
        source = adapters[0].base
    refuse_model_with_adapter(source)
    return source, tuple(adapters)


def check_base(base: str, adapters: Sequence[SavedAdapter]) -> None:
    """Raises ModelError if an adapter was trained on something else. Call it when the base has been read: a Hugging
    Face name may have had no files here before."""
    for number, adapter in enumerate(adapters):
        found = _digest_of(base, adapters[:number])
        if None not in (found, adapter.base_digest) and found != adapter.base_digest:
            raise ModelError(
                f"{adapter.base} is not the model that the adapter in {adapter.folder} was trained on: its weights or "
                "its config have changed",
                remedy=f"name that model as base_model_name_or_path in its {CONFIG}; if this is the same model in "
                f"other files, delete its {BASE}",
            )


def refuse_model_with_adapter(source: str) -> None:
    """Raises ModelError if a folder holds a model and an adapter. transformers would put peft's layers into the
    model, and whoever reads its weights alone would leave the adapter out."""
    if is_model_and_adapter(Path(source)):
        raise ModelError(
            f"{source} holds a model and an adapter, so it is not clear which weights are meant",
            remedy="move one of them into a folder of its own, and name the folder that you mean",
        )


def base_digest(source: str) -> str | None:
    """The digest of the model that `source` leads to, with its adapters. None if its files are not known: a model that
    was made of a config alone has no source."""
    return _digest_of(*base_of(source)) if source else None


def _digest_of(base: str, adapters: Sequence[SavedAdapter]) -> str | None:
    folder = _folder_of(base)
    digest = None if folder is None else model_digest(folder)
    for adapter in adapters:
        if digest is not None:
            shape = (adapter.shape.rank, adapter.shape.alpha, adapter.shape.rslora)
            digest = combined_digest(digest, repr(shape), Path(adapter.folder) / TENSORS)
    return digest


def _folder_of(source: str) -> Path | None:
    """The folder itself, or that of a Hugging Face name in the local cache."""
    if Path(source).is_dir():
        return Path(source)
    try:
        found = cached_file(source, CONFIG_NAME, local_files_only=True, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):
        return None
    return None if found is None else Path(found).parent


def tokenizer_source(base: str, adapters: Sequence[SavedAdapter]) -> str:
    """Where the tokenizer is. peft writes none beside an adapter."""
    folders = (adapter.folder for adapter in reversed(adapters))
    return next((folder for folder in folders if has_tokenizer(Path(folder))), base)


@contextmanager
def while_base_is_read(base: str, adapters: Sequence[SavedAdapter]) -> Iterator[None]:
    """While the base of adapters is read: if it is not there, the error says where its place is written down."""
    try:
        yield
    except ModelError as error:
        if not adapters or Path(base).is_dir():
            raise
        folder = adapters[0].folder
        raise ModelError(
            f"the base model of the adapter in {folder} cannot be read: {error.message}",
            remedy=f"bring {base!r} back; or write where it is now as base_model_name_or_path into {folder}/{CONFIG}",
        ) from error
