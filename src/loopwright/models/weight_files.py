"""Weights as safetensors files, from one process to another.

A file gets its name only when it is complete. It is read only if it exists with the size and the checksum of its
manifest. So a deleted, truncated or damaged file changes nothing in the process that should load it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from loopwright.errors import WeightsError
from loopwright.types import TensorSpec, WeightFile

BLOCK = 1 << 24
ALIGNMENT = 8
"""Tensors begin at a multiple of this, so that they can be read where they lie."""
WRITE_AGAIN = "publish the weights again; nothing but the run may touch this folder while it is running"
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
"""The names of types in a safetensors file."""


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    if tensor.dtype not in NAMES:
        raise WeightsError(
            f"weights of the type {tensor.dtype} cannot be published", remedy="load the model with another model.dtype"
        )
    return TensorSpec(NAMES[tensor.dtype], tuple(tensor.shape))


class WeightFileWriter:
    """A `WeightSink` that writes a safetensors file. We write the format ourselves because `save_file` of the library
    takes 1.8 s for 538 MB where copying as many bytes takes 0.4 s, and because the checksum is computed on the way."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._draft = file.with_name(f".{file.name}.part")
        self._tensors: Mapping[str, TensorSpec] = {}
        self._missing: list[str] = []
        self._checksum = 0
        self._bytes = 0
        self._opened: FileIO | None = None

    def begin(self, tensors: Mapping[str, TensorSpec]) -> None:
        self._tensors, self._missing = dict(tensors), list(reversed(list(tensors)))
        header, offset = {}, 0
        for name, spec in tensors.items():
            end = offset + _bytes_of(spec)
            header[name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": (offset, end)}
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        try:
            self._opened = self._draft.open("wb", buffering=0)
        except OSError as error:
            raise self._failed(error) from error
        self._write(len(text).to_bytes(8, "little") + text)

    def take(self, bucket: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in bucket.items():
            if not self._missing or name != self._missing.pop():
                raise RuntimeError(f"the tensor {name!r} comes out of its order")
            if spec_of(tensor) != self._tensors[name]:
                raise RuntimeError(f"the tensor {name!r} is not as it was announced")
            self._write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)

    def finish(self) -> WeightFile:
        """Close the file, which gets its name now. Gives its manifest."""
        if self._opened is None or self._missing:
            raise RuntimeError(f"{len(self._missing)} tensors are missing")
        try:
            self._opened.close()
            self._draft.rename(self._file)
        except OSError as error:
            raise self._failed(error) from error
        return WeightFile(str(self._file), self._bytes, checksum_text(self._checksum), self._tensors)

    def discard(self) -> None:
        """Remove what was written. To be called if not all tensors came."""
        if self._opened is not None:
            self._opened.close()
        self._draft.unlink(missing_ok=True)

    def _write(self, data: bytes | memoryview) -> None:
        if self._opened is None:
            raise RuntimeError("tensors come before it was said which ones will come")
        self._checksum = zlib.crc32(data, self._checksum)
        self._bytes += len(data)
        try:
            while len(data):
                data = data[self._opened.write(data) :]
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> WeightsError:
        self.discard()
        return WeightsError(
            f"the weights could not be written to {self._file}: {error}",
            remedy="free some space there; the same command goes on from the last checkpoint",
        )


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
    if {name: spec_of(tensor) for name, tensor in tensors.items()} != dict(manifest.tensors):
        raise _unfit(manifest, "its tensors are not those of its manifest")
    return tensors


def checksum_text(value: int) -> str:
    """CRC-32. It protects against accidents, not attacks, and must not take longer than reading."""
    return f"crc32:{value:08x}"


def _checksum(file: Path) -> str:
    value = 0
    with file.open("rb") as opened:
        while block := opened.read(BLOCK):
            value = zlib.crc32(block, value)
    return checksum_text(value)


def _bytes_of(spec: TensorSpec) -> int:
    (dtype,) = [dtype for dtype, name in NAMES.items() if name == spec.dtype]
    return torch.Size(spec.shape).numel() * dtype.itemsize


def _unfit(manifest: WeightFile, why: str) -> WeightsError:
    return WeightsError(
        f"the weights in {manifest.path} cannot be used: {why}; nothing was changed", remedy=WRITE_AGAIN
    )
