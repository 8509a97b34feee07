"""The optimiser's numbers as the ranks of a learner write them: safetensors of torch's distributed checkpoints, one
file for each rank, which say which part of which tensor they hold. Nothing in them is pickled."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem, WriteItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from loopwright.errors import CheckpointError

MOMENTS = ("exp_avg", "exp_avg_sq")


FILE_BYTES = 2**28
"""About how many bytes of all ranks go into files of one number. torch makes a file in memory before it writes it."""


class _BeatingWriter(DefaultSavePlanner):
    """Beats before each tensor that goes into a file, so at least once for each file."""

    def __init__(self, beat: Callable[[], None]) -> None:
        super().__init__()
        self._beat = beat

    def resolve_data(self, write_item: WriteItem) -> Any:
        self._beat()
        return super().resolve_data(write_item)


class _BeatingReader(DefaultLoadPlanner):
    """Beats after each tensor."""

    def __init__(self, beat: Callable[[], None]) -> None:
        super().__init__()
        self._beat = beat

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        super().commit_tensor(read_item, tensor)
        self._beat()


def write_moments(folder: Path, moments: Mapping[str, torch.Tensor], beat: Callable[[], None]) -> None:
    """Write this rank's parts. All ranks call it, and rank 0 returns when all are done."""
    writer = HuggingFaceStorageWriter(str(folder), _file_numbers(moments), save_distributed=True)
    try:
        save(dict(moments), storage_writer=writer, planner=_BeatingWriter(beat))
    # It is a BaseException, which nobody else would notice.
    except CheckpointException as error:
        raise CheckpointError(
            f"the optimiser's numbers could not be written to {folder}: {_words(error)}",
            remedy="free some disk space; earlier checkpoints are intact, and the same command goes on from the newest",
        ) from error


def _words(error: BaseException) -> str:
    """Why it failed in the first rank that it failed in, without the way through torch."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    return str(error) or type(error).__name__


def _file_numbers(moments: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The number of each tensor's file, the same on all ranks."""
    ends = accumulate(tensor.numel() * tensor.element_size() for tensor in moments.values())
    return {name: 1 + end // FILE_BYTES for name, end in zip(moments, ends, strict=True)}


def _require_all_rows(metadata: Metadata, name: str, shape: torch.Size) -> None:
    """Raise if a file with rows of the tensor is missing: torch would leave them as they were in memory. Each rank has
    written its rows, in the order of the ranks."""
    entry = metadata.state_dict_metadata[name]
    if not shape or not isinstance(entry, TensorStorageMetadata):
        return
    covered = ranks = 0
    for part in sorted((one for one in entry.chunks if one.sizes.numel()), key=lambda one: one.offsets):
        if part.offsets[0] != covered or part.sizes[1:] != shape[1:]:
            break
        covered, ranks = covered + part.sizes[0], ranks + 1
    # Those that are too long are refused by torch.
    if covered < shape[0]:
        file = Path(metadata.storage_data[MetadataIndex(name, entry.chunks[0].offsets)].relative_path).name
        missing = re.sub(r"shard-\d+", f"shard-{ranks + 1:05}", file)
        raise ValueError(f"{missing} is missing or has not all rows of {name}")


def read_moments(
    folder: Path, weights: Mapping[str, torch.Tensor], *, alone: bool, beat: Callable[[], None] = lambda: None
) -> dict[str, torch.Tensor]:
    """The moments of these weights, in parts as they are. `alone` is for a process that has no other ranks."""
    moments = {f"{name}/{moment}": torch.empty_like(weight) for name, weight in weights.items() for moment in MOMENTS}
    reader = HuggingFaceStorageReader(str(folder))
    try:
        metadata = reader.read_metadata()
        stored = metadata.state_dict_metadata.keys()
        for name in sorted(stored & moments.keys()):
            _require_all_rows(metadata, name, moments[name].shape)
        if stored != moments.keys():
            raise CheckpointError(
                f"checkpoint {folder.parent} has the optimiser's numbers of other weights, such as "
                f"{min(stored ^ moments.keys())}",
                remedy="resume with the model that the run was started with, or start over with --fresh",
            )
        with warnings.catch_warnings():
            # It warns everyone who loads alone.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            load(moments, storage_reader=reader, planner=_BeatingReader(beat), no_dist=alone)
    except (CheckpointException, OSError, ValueError, KeyError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not alone:
            # Another rank has gone. The checkpoint may be sound, and nobody must be told to delete it.
            raise
        raise CheckpointError(
            f"checkpoint {folder.parent} cannot be read: {_words(error)}",
            remedy="delete that folder to continue from the one before it, or start over with --fresh",
        ) from error
    return moments
