"""Reads the parts of tensors in safetensors files that one rank holds. Nothing else is read from the disk."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from loopwright.errors import ModelError
from loopwright.learn.ranks.parts import part_here
from loopwright.models.load import load_weights
from loopwright.types import TensorSpec

log = logging.getLogger("loopwright")

Rows = Callable[[int, int], torch.Tensor]
"""The rows of a stored tensor from one number up to, but without, another."""


def fill_model(parameters: Mapping[str, torch.Tensor], source: str, beat: Callable[[], None]) -> None:
    """Give the parameters of a model this rank's part of the weights that `source` has. `beat` is called after each."""
    with ExitStack() as stack:
        stored = _stored(source, stack)
        missing = parameters.keys() - stored.keys()
        if not missing:
            fill(parameters, stored, beat)
            return
    # transformers knows other names and forms for the weights of some models. It reads all of them.
    log.info("the files of %s do not have %s by its name: this rank reads the whole model", source, min(missing))
    whole = dict(load_weights(source, "float32").named_parameters())
    if missing := parameters.keys() - whole.keys():
        raise ModelError(
            f"model {source!r} lacks {len(missing)} of its weights, such as {min(missing)!r}",
            remedy="save the whole model again with save_pretrained; its config.json may belong to another model",
        )
    fill(parameters, {name: _rows_of(tensor.detach()) for name, tensor in whole.items()}, beat)


@torch.no_grad()
def fill(parameters: Mapping[str, torch.Tensor], stored: Mapping[str, Rows], beat: Callable[[], None]) -> None:
    """Copy this rank's rows of each stored tensor into the parameter of the same name. `beat` is called after each."""
    for name, parameter in parameters.items():
        part, first = part_here(parameter)
        if not part.ndim:
            part.copy_(stored[name](0, 0))
        elif len(part):
            part.copy_(stored[name](first, first + len(part)))
        beat()


def fill_from(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], beat: Callable[[], None]) -> None:
    """Copy this rank's rows of each whole tensor, the second of a pair, into the first."""
    for parameter, whole in pairs:
        fill({"": parameter}, {"": _rows_of(whole)}, beat)


def rows_of_file(file: Path, stack: ExitStack) -> dict[str, Rows]:
    """The tensors of a safetensors file, which is open until the stack ends."""
    opened = stack.enter_context(safe_open(file, "pt"))
    return {name: _slices(opened, name) for name in opened.keys()}  # noqa: SIM118


def specs_of_file(file: Path) -> dict[str, TensorSpec]:
    """What a safetensors file says of its tensors."""
    with safe_open(file, "pt") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
        return {name: TensorSpec(one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}


def _slices(opened: Any, name: str) -> Rows:
    def rows(first: int, end: int) -> torch.Tensor:
        found: torch.Tensor = opened.get_slice(name)[first:end] if end else opened.get_tensor(name)
        return found

    return rows


def _rows_of(tensor: torch.Tensor) -> Rows:
    return lambda first, end: tensor[first:end] if end else tensor


def _stored(source: str, stack: ExitStack) -> dict[str, Rows]:
    try:
        return {name: rows for file in _files(source) for name, rows in rows_of_file(file, stack).items()}
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise ModelError(
            f"cannot read the weights of model {source!r}: {error}",
            remedy="model.path must have weights as safetensors: save the model again with save_pretrained",
        ) from error


def _files(source: str) -> list[Path]:
    """The files of weights, in the folder or in the local cache."""
    quiet = {"_raise_exceptions_for_missing_entries": False}
    index = cached_file(source, SAFE_WEIGHTS_INDEX_NAME, **quiet)
    names = [SAFE_WEIGHTS_NAME]
    if index is not None:
        names = sorted(set(json.loads(Path(index).read_text())["weight_map"].values()))
    found = (cached_file(source, name, **quiet) for name in names)
    return [Path(file) for file in found if file is not None]
