"""The numbers of one train step, read from a run folder, and where those of two runs differ: pure but for reading.

Nothing is rounded: two numbers are equal if all their bits are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loopwright.errors import BenchError
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.track.jsonl import read_jsonl
from loopwright.types import Rollout

STEP = 1
LOSS, GRADIENT = "learner/loss", "learner/grad_norm"
COMPARED = ("learner/", "reward/")
"""The beginnings of the names of the metrics that a deterministic run repeats. Times do not repeat."""

UNSEEDED = "torch_rng"
"""The state of torch's own generator in a checkpoint. Each process seeds it anew; nothing that is compared uses it."""

Chain = tuple[npt.NDArray[Any], ...]
STREAMS: tuple[tuple[str, Callable[[Any], npt.NDArray[Any]]], ...] = (
    ("token ids", lambda chain: chain.ids),
    ("masks", lambda chain: chain.mask),
    ("logprobs", lambda chain: chain.logprobs),
    ("versions", lambda chain: chain.versions),
)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What step 1 of a run computed."""

    chains: Mapping[str, tuple[Chain, ...]]
    """Of each rollout, by its key: for every chain the streams of STREAMS."""
    rewards: Mapping[str, str]
    metrics: Mapping[str, float | None]
    weights: Mapping[str, str]
    """The checksum of each tensor of the checkpoint, the optimiser's among them."""

    @property
    def sampled(self) -> int:
        """Tokens that the model sampled."""
        return sum(int(chain[1].sum()) for chains in self.chains.values() for chain in chains)


def read_numbers(folder: RunFolder) -> Numbers:
    """The numbers of a run that has made one step and its checkpoint."""
    rollouts = {str(attempt.rollout.key): attempt.rollout for attempt in StoredRun(folder.rollouts).attempts()}
    metrics = {
        name: value
        for record in read_jsonl(folder.metrics)
        if record["step"] == STEP
        for name, value in record.items()
        if name.startswith(COMPARED)
    }
    for name in (LOSS, GRADIENT):
        if name not in metrics:
            raise BenchError(f"{folder.metrics} has no {name} of step {STEP}", remedy="let the example train a step")
    return Numbers(
        chains={key: tuple(_chains(rollout)) for key, rollout in rollouts.items()},
        rewards={key: str(rollout.reward) for key, rollout in rollouts.items()},
        metrics=metrics,
        weights=dict(_weights(folder.checkpoints / f"step-{STEP:06d}")),
    )


def differences(old: Numbers, new: Numbers) -> Iterator[str]:
    """What is not bit-equal, one line for each kind of number; nothing if all is."""
    for number, (what, _) in enumerate(STREAMS):
        yield from _differing(what, _streams(old, number), _streams(new, number))
    yield from _differing("rewards", old.rewards, new.rewards)
    yield from _differing("metrics", _bits(old.metrics), _bits(new.metrics))
    yield from _differing("weights", old.weights, new.weights)


def _differing(what: str, old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    names = sorted({*old, *new})
    differ = [name for name in names if old.get(name) != new.get(name)]
    if differ:
        first = differ[0]
        missing = "" if first in old and first in new else f", only in the {'new' if first in new else 'old'} tree"
        yield f"{what}: {len(differ)} of {len(names)} differ, first {first}{missing}"


def _streams(numbers: Numbers, stream: int) -> dict[str, object]:
    """One stream of every rollout as bytes: NaN equals itself, and 0.0 differs from -0.0."""
    return {
        key: tuple((chain[stream].dtype.str, chain[stream].tobytes()) for chain in chains)
        for key, chains in numbers.chains.items()
    }


def _bits(metrics: Mapping[str, float | None]) -> dict[str, object]:
    return {name: None if value is None else float(value).hex() for name, value in metrics.items()}


def _chains(rollout: Rollout) -> Iterator[Chain]:
    for chain in rollout.episode.chains if rollout.episode else ():
        yield tuple(np.asarray(read(chain)) for _, read in STREAMS)


def _weights(checkpoint: Path) -> Iterator[tuple[str, str]]:
    files = sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise BenchError(f"{checkpoint} holds no weights", remedy="let the example write its checkpoint")
    for file in files:
        for name, checksum in _tensors(file):
            yield f"{file.stem}/{name}", checksum


def _tensors(file: Path) -> Iterator[tuple[str, str]]:
    """The checksum of each tensor's type, shape and bytes. A file's own checksum would also cover their order."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
        for other in ("__metadata__", UNSEEDED):
            header.pop(other, None)
        for name, tensor in header.items():
            begin, end = tensor["data_offsets"]
            opened.seek(8 + length + begin)
            told = hashlib.sha256(f"{tensor['dtype']} {tensor['shape']}".encode())
            told.update(opened.read(end - begin))
            yield name, told.hexdigest()
