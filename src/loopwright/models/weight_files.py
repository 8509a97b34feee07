"""Weights as safetensors files, from one process to another.

A file gets its name only when it is complete. It is read only if it exists with the size and the checksum of its
manifest. So a deleted, truncated or damaged file changes nothing in the process that should load it.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from loopwright.errors import WeightsError
from loopwright.types import TensorSpec, WeightFile

PREAMBLE = 8
"""A safetensors file begins with the length of its header, in this many bytes. The header is padded to a multiple of as
many, so that tensors can be read where they lie."""
WRITE_AGAIN = "publish the weights again; nothing but the run may touch this folder while it is running"
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
"""The names of types in a safetensors file."""
DTYPES = {name: dtype for dtype, name in NAMES.items()}


@dataclass(frozen=True, slots=True, eq=False)
class WeightBytes:
    """The bytes of a weight file, in memory that may be shared and is not to be written. The path of `file` is not
    read: size, checksum and tensors are those of `data`."""

    file: WeightFile
    data: npt.NDArray[np.uint8]


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    if tensor.dtype not in NAMES:
        raise WeightsError(
            f"weights of the type {tensor.dtype} cannot be published", remedy="load the model with another model.dtype"
        )
    return TensorSpec(NAMES[tensor.dtype], tuple(tensor.shape))


class WeightFileWriter:
    """A `WeightSink` that writes a safetensors file. We write the format ourselves because `save_file` of the library
    takes 1.8 s for 538 MB where copying as many bytes takes 0.4 s, and because the checksum is computed on the way.

    `spare` is a file that nobody needs any more. If it has the right size, it is overwritten and renamed: memory that
    the process already has is written several times as fast as fresh pages.
    """

    def __init__(self, file: Path, spare: Path | None = None) -> None:
        self._file = file
        self._draft = file.with_name(f".{file.name}.part")
        self._spare = spare
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
        text += b" " * (-len(text) % PREAMBLE)
        try:
            self._opened = self._open(PREAMBLE + len(text) + offset)
        except OSError as error:
            raise self._failed(error) from error
        self._write(len(text).to_bytes(PREAMBLE, "little") + text)

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

    def _open(self, size: int) -> FileIO:
        spare = self._spare
        if spare is None or not spare.exists():
            return self._draft.open("wb", buffering=0)
        # A file of another size would have to be cut, and whoever still has it mapped would be killed by the kernel.
        if spare.stat().st_size != size:
            spare.unlink()
            return self._draft.open("wb", buffering=0)
        spare.rename(self._draft)
        return self._draft.open("r+b", buffering=0)

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
    """Verify the file, and return its tensors. They lie in the file's own pages: use them before it is written again.

    No kernel of torch runs here, so it may run beside the compute thread.
    """
    try:
        data = mapped(manifest)
        verify(zlib.crc32(data.numpy().data), manifest)
        return file_tensors(data, manifest)
    except (OSError, ValueError) as error:
        raise WeightsError(
            f"the weights in {manifest.path} cannot be used: {error}; nothing was changed", remedy=WRITE_AGAIN
        ) from error


def checked_weights(update: WeightBytes) -> Mapping[str, torch.Tensor]:
    """Verify bytes that are in memory, and return their tensors, which lie in them. No kernel of torch runs here."""
    try:
        if update.data.nbytes != update.file.bytes:
            raise ValueError(f"they are {update.data.nbytes:,} bytes instead of {update.file.bytes:,}")
        verify(zlib.crc32(update.data.data), update.file)
        return file_tensors(torch.from_dlpack(update.data), update.file)  # type: ignore[attr-defined]
    except ValueError as error:
        raise WeightsError(
            f"the weights that came through memory cannot be used: {error}; nothing was changed", remedy=WRITE_AGAIN
        ) from error


def mapped(manifest: WeightFile) -> torch.Tensor:
    """The bytes of a weight file, where they lie. Raises OSError, or ValueError if it has another size."""
    with Path(manifest.path).open("rb") as opened:
        if (size := os.fstat(opened.fileno()).st_size) != manifest.bytes:
            raise ValueError(f"it has {size:,} bytes instead of {manifest.bytes:,}")
        # A private mapping: torch wants memory that could be written, and the file stays as it is.
        return torch.frombuffer(mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY), dtype=torch.uint8)


def verify(checksum: int, manifest: WeightFile) -> None:
    """Raises ValueError if the CRC-32 of the bytes that came is not the manifest's."""
    if (found := checksum_text(checksum)) != manifest.checksum:
        raise ValueError(f"its checksum is {found} instead of {manifest.checksum}")


def checksum_text(value: int) -> str:
    """CRC-32. It protects against accidents, not attacks, and must not take longer than reading."""
    return f"crc32:{value:08x}"


def file_tensors(data: torch.Tensor, manifest: WeightFile) -> Mapping[str, torch.Tensor]:
    """The tensors of a weight file whose bytes are `data`: views of it where their alignment allows that. Raises
    ValueError if they are not those of the manifest."""
    try:
        start = PREAMBLE + int.from_bytes(data[:PREAMBLE].numpy().tobytes(), "little")
        header = json.loads(data[PREAMBLE:start].numpy().tobytes())
        told = {name: TensorSpec(one["dtype"], tuple(one["shape"])) for name, one in header.items()}
        first = {name: start + one["data_offsets"][0] for name, one in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError("it is no weight file") from error
    if told != dict(manifest.tensors):
        raise ValueError("its tensors are not those of its manifest")
    return {name: _tensor(data, spec, first[name]) for name, spec in told.items()}


def _tensor(data: torch.Tensor, spec: TensorSpec, first: int) -> torch.Tensor:
    if spec.dtype not in DTYPES:
        raise ValueError(f"it has tensors of the type {spec.dtype}, and only {', '.join(DTYPES)} can be loaded")
    dtype, part = DTYPES[spec.dtype], data[first : first + _bytes_of(spec)]
    if len(part) != _bytes_of(spec):
        raise ValueError("it has fewer bytes than its header says")
    if not len(part):
        return torch.empty(spec.shape, dtype=dtype)
    if part.storage_offset() % dtype.itemsize:
        # Copied by numpy: no kernel of torch may run outside the compute thread.
        part = torch.from_numpy(part.numpy().copy())
    return part.view(dtype).view(spec.shape)


def _bytes_of(spec: TensorSpec) -> int:
    return torch.Size(spec.shape).numel() * DTYPES[spec.dtype].itemsize
