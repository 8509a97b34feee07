"""Weights as safetensors files, from one process to another.

A file gets its name only when it is complete. It is read only if it exists with the size and the checksum of its
manifest. So a deleted, truncated or damaged file changes nothing in the process that should load it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from loopwright.errors import WeightsError
from loopwright.types import TensorSpec, WeightFile

BLOCK = 1 << 24
WRITE_AGAIN = "publish the weights again; nothing but the run may touch this folder while it is running"


def write_weights(model: Any, file: Path) -> WeightFile:
    """Write a model's parameters to `file`."""
    draft = file.with_name(f".{file.name}.part")
    try:
        save_file({name: p.detach().contiguous() for name, p in model.named_parameters()}, draft)
        with safe_open(draft, "pt") as written:
            slices = {name: written.get_slice(name) for name in written.keys()}  # noqa: SIM118 (it is no mapping)
            tensors = {name: TensorSpec(s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}
        manifest = WeightFile(str(file), draft.stat().st_size, _checksum(draft), tensors)
        draft.rename(file)
    except (OSError, SafetensorError) as error:
        draft.unlink(missing_ok=True)
        raise WeightsError(
            f"the weights could not be written to {file}: {error}",
            remedy="free some space there; the same command goes on from the last checkpoint",
        ) from error
    return manifest


def read_weights(manifest: WeightFile) -> Mapping[str, torch.Tensor]:
    """Verify the file, and return its tensors."""
    file = Path(manifest.path)
    try:
        size = file.stat().st_size
        if size != manifest.bytes:
            raise _unfit(manifest, f"it has {size:,} bytes instead of {manifest.bytes:,}")
        if (found := _checksum(file)) != manifest.checksum:
            raise _unfit(manifest, f"its checksum is {found} instead of {manifest.checksum}")
        tensors: dict[str, torch.Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise _unfit(manifest, str(error)) from error
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != {name: spec.shape for name, spec in manifest.tensors.items()}:
        raise _unfit(manifest, "its tensors are not those of its manifest")
    return tensors


def _checksum(file: Path) -> str:
    """CRC-32. It protects against accidents, not attacks, and must not take longer than reading."""
    value = 0
    with file.open("rb") as opened:
        while block := opened.read(BLOCK):
            value = zlib.crc32(block, value)
    return f"crc32:{value:08x}"


def _unfit(manifest: WeightFile, why: str) -> WeightsError:
    return WeightsError(
        f"the weights in {manifest.path} cannot be used: {why}; nothing was changed", remedy=WRITE_AGAIN
    )
