"""Checkpoints of ranks: the whole weights in one file that any tool can load, and the optimiser's numbers in files of
each rank. Any number of ranks can load them, bit for bit; so can one process.

The folder is a new one, which its caller renames when all ranks are done: a rank that is killed while it writes would
leave an older checkpoint damaged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from loopwright.errors import CheckpointError
from loopwright.learn import state
from loopwright.learn.publishing import stream_tensors
from loopwright.learn.ranks.parts import gathered_from
from loopwright.learn.ranks.reading import fill, rows_of_file, specs_of_file
from loopwright.learn.sharded_moments import MOMENTS, read_moments, write_moments
from loopwright.models.weight_files import WeightFileWriter, spec_of
from loopwright.ports import WeightSink
from loopwright.types import TensorSpec

Weights = Mapping[str, torch.Tensor]
Beat = Callable[[], None]
"""Called after each tensor: a rank that gets nowhere while it saves or loads is lost, however long it may take."""


class Nowhere:
    """The WeightSink of the ranks that only help rank 0 to gather its weights."""

    def begin(self, tensors: Mapping[str, TensorSpec]) -> None:
        pass

    def take(self, bucket: Weights) -> None:
        pass


def stream_whole(weights: Weights, dtype: torch.dtype, sink: WeightSink, beat: Beat) -> None:
    """Give the whole of each weight to the sink of rank 0, one bucket at a time. All ranks call it."""
    with torch.device("meta"):
        specs = {name: spec_of(torch.empty(weight.shape, dtype=dtype)) for name, weight in weights.items()}
    is_first = dist.get_rank() == 0

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in weights.items():
            tensor = gathered_from(weight)
            if is_first:
                yield name, tensor.to(dtype)

    stream_gathered(specs, gathered(), sink, beat)


def stream_gathered(
    specs: Mapping[str, TensorSpec], gathered: Iterator[tuple[str, torch.Tensor]], sink: WeightSink, beat: Beat
) -> None:
    """Give tensors to the sink of rank 0. The others only take part in gathering them. `beat` is called after each."""

    def beating() -> Iterator[tuple[str, torch.Tensor]]:
        for one in gathered:
            yield one
            beat()

    if dist.get_rank() == 0:
        stream_tensors(specs, beating(), sink)
    else:
        for _ in gathered:
            beat()


def write_stream(file: Path, stream: Callable[[WeightSink], None]) -> None:
    """Write what `stream` gives to one file. All ranks call it."""
    if dist.get_rank():
        stream(Nowhere())
        return
    writer = WeightFileWriter(file)
    try:
        stream(writer)
        writer.finish()
    except BaseException:
        writer.discard()
        raise


def save_ranks(
    folder: Path, weights: Weights, optimizer: torch.optim.Optimizer, version: int, file: str, beat: Beat
) -> None:
    """Write this rank's part into `folder`, and on rank 0 also what is whole. All ranks call it."""
    write_stream(folder / file, partial(stream_whole, weights, torch.float32, beat=beat))
    trained = {name: optimizer.state[weight] for name, weight in weights.items() if weight in optimizer.state}
    moments = {f"{name}/{moment}": found[moment] for name, found in trained.items() for moment in MOMENTS}
    write_moments(folder / state.SHARDED, moments, beat)
    with state.while_written(folder):
        save_file({state.RANDOM: torch.get_rng_state()}, state.random_file(folder, dist.get_rank()))
        if dist.get_rank() == 0:
            steps = {name: float(found["step"]) for name, found in trained.items()}
            about = {"version": version, "ranks": dist.get_world_size(), "steps": steps}
            (folder / state.META).write_text(json.dumps(about))
    # The folder gets its name when rank 0 answers.
    dist.barrier()


def load_ranks(folder: Path, weights: Weights, optimizer: torch.optim.Optimizer, file: str, beat: Beat) -> int:
    """Read this rank's part of a checkpoint, of ranks or of one process, and return its version."""
    with state.while_read(folder), ExitStack() as stack:
        about = json.loads((folder / state.META).read_text())
        _check_fits(folder, weights, specs_of_file(folder / file))
        fill(weights, rows_of_file(folder / file, stack), beat)
        if state.is_sharded(folder):
            moments = read_moments(folder / state.SHARDED, weights, alone=False, beat=beat)
            steps = about["steps"]
            random = state.random_file(folder, dist.get_rank() % about["ranks"])
        else:
            random = folder / state.OPTIMIZER
            stored = rows_of_file(random, stack)
            moments = {f"{name}/{one}": torch.empty_like(weight) for name, weight in weights.items() for one in MOMENTS}
            fill(moments, stored, beat)
            steps = {name: float(stored[f"{name}/step"](0, 0)) for name in weights}
        torch.set_rng_state(state.random_state_in(random))
    optimizer.state.clear()
    for name, weight in weights.items():
        optimizer.state[weight] = {moment: moments[f"{name}/{moment}"] for moment in MOMENTS}
        # A fused optimiser counts its steps on the device.
        optimizer.state[weight]["step"] = torch.tensor(float(steps[name]), device=weight.device)
    return int(about["version"])


def _check_fits(folder: Path, weights: Weights, stored: Mapping[str, TensorSpec]) -> None:
    if {name: tuple(weight.shape) for name, weight in weights.items()} != {
        name: spec.shape for name, spec in stored.items()
    }:
        raise CheckpointError(
            f"checkpoint {folder} belongs to another model",
            remedy="resume with the model that the run was started with, or start over with --fresh",
        )
    for name, spec in stored.items():
        if spec.dtype != "F32":
            # Converting them would continue from other weights than those that were trained.
            raise CheckpointError(
                f"checkpoint {folder} has the numbers of {name} as {spec.dtype}, and ranks keep them as F32",
                remedy="start a new run from its weights, with that folder as model.path",
            )
