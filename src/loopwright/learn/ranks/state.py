"""Checkpoints of ranks: the whole weights in one file that any tool can load, and the optimiser's numbers in files of
each rank, by torch's writer of safetensors. Any number of ranks can load them, bit for bit.

The folder is a new one, which its caller renames when all ranks are done: a rank that is killed while it writes would
leave an older checkpoint damaged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException

from loopwright.errors import CheckpointError
from loopwright.learn.publishing import stream_tensors
from loopwright.learn.ranks.parts import whole
from loopwright.learn.ranks.reading import fill, rows_of_file
from loopwright.learn.state import META, MODEL, OPTIMIZER, unreadable
from loopwright.models.weight_files import WeightFileWriter, spec_of
from loopwright.types import TensorSpec

SHARDED = "optimizer"
"""The folder of the optimiser's numbers, rank by rank."""
MOMENTS = ("exp_avg", "exp_avg_sq")
RANDOM = "torch_rng"


def save_ranks(folder: Path, weights: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, version: int) -> None:
    """Write this rank's part into `folder`, and on rank 0 also what is whole. All ranks call it."""
    first = dist.get_rank() == 0
    write_whole(folder / MODEL if first else None, weights, torch.float32)
    moments = _moments(weights, optimizer)
    try:
        dcp.save(moments, storage_writer=HuggingFaceStorageWriter(str(folder / SHARDED), save_distributed=True))
    except CheckpointException as error:
        raise CheckpointError(
            f"the optimiser's numbers could not be written to {folder / SHARDED}: {error}",
            remedy="free some disk space; earlier checkpoints are intact",
        ) from error
    save_file({RANDOM: torch.get_rng_state()}, _random_file(folder, dist.get_rank()))
    if first:
        steps = {name: float(optimizer.state[weight]["step"]) for name, weight in weights.items() if weight in optimizer.state}
        (folder / META).write_text(json.dumps({"version": version, "ranks": dist.get_world_size(), "steps": steps}))
    dist.barrier()
