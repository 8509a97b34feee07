"""What one rank of a learner does. Every call is a collective: all ranks make the same ones in the same order."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from loopwright.learn.execute import StepExecutor
from loopwright.learn.forward import packed_logprobs
from loopwright.learn.learner import optimizer_of
from loopwright.learn.master import MasterWeights
from loopwright.learn.plan import MiniBatch, StepPlan, row_of_chain
from loopwright.learn.ranks.communication import Communication
from loopwright.learn.ranks.messages import RankReport
from loopwright.learn.ranks.shards import ShardedBody, Sharding
from loopwright.learn.ranks.state import load_ranks, save_ranks, write_stream
from loopwright.learn.recipe import Recipe
from loopwright.learn.room import Room
from loopwright.learn.samples import tensors_of
from loopwright.learn.sft import Example
from loopwright.learn.state import MODEL, describe_model, while_written
from loopwright.models.device import CUDA
from loopwright.ports import WeightSink

KIB = 1024


class RankLearner:
    """Trains this rank's shard of a model. It is used in one thread."""

    def __init__(
        self, body: ShardedBody, recipe: Recipe, sharding: Sharding, beat: Callable[[], None] = lambda: None
    ) -> None:
        self._body = body
        self._device = sharding.device
        self._dtype = sharding.dtype
        self._is_first = sharding.mesh.get_local_rank() == 0
        self._communication: Communication = sharding.communication
        self._version = 0
        self._beat = beat
        self._trained = body.trained
        self._weights = MasterWeights(self._trained.parameters)
        self._optimizer = optimizer_of(self._weights, recipe, self._device)
        room = Room(self._device, recipe.micro_batch_tokens, recipe.checkpoint_activations)
        self._executor = StepExecutor(recipe, body, self._weights, self._optimizer, room, beat)

    @property
    def describes(self) -> str:
        """Where and how it computes, for people."""
        return f"{str(self._dtype).removeprefix('torch.')} on {self._device}, by {self._body.name}"

    def step(self, part: StepPlan) -> RankReport:
        """Do this rank's part of a step."""
        started, start, waited = time.time(), time.perf_counter(), self._communication.seconds
        numbers = self._executor.run(part)
        self._executor.rest()
        self._version = part.step
        return RankReport(
            numbers,
            started=started,
            seconds=time.perf_counter() - start,
            communication_seconds=self._communication.seconds - waited,
            tokens=sum(map(_tokens, part.mini_batches)),
            peak_bytes=self._peak(),
        )

    @torch.no_grad()
    def logprobs(self, ids: Sequence[int], temperature: float) -> tuple[float, ...]:
        """The logprob of each token but the first under the present weights."""
        rows = (row_of_chain(0, 1, len(ids)),)
        tensors = tensors_of(rows, [Example.of(ids[:1], ids[1:])], self._device)
        return tuple(packed_logprobs(self._body, rows, tensors, temperature)[0].tolist())

    def save(self, folder: Path) -> None:
        save_ranks(folder, self._weights.named, self._optimizer, self._version, self._trained.file, self._beat)
        if self._is_first:
            with while_written(folder):
                self._trained.describe(folder)

    def load(self, folder: Path) -> int:
        self._trained.check(folder)
        self._version = load_ranks(folder, self._weights.named, self._optimizer, self._trained.file, self._beat)
        return self._version

    def publish(self, sink: WeightSink) -> None:
        """Give what engines need to the sink of rank 0."""
        self._trained.publish(sink)
        self._executor.rest()

    def export(self, folder: Path) -> None:
        write_stream(folder / MODEL, self._trained.stream)
        if self._is_first:
            self._body.model.config.dtype = self._dtype
            with while_written(folder):
                describe_model(self._body.model, folder)

    def _peak(self) -> int:
        """The most memory that it has had, in bytes."""
        if self._device.type == CUDA:
            return torch.cuda.max_memory_allocated(self._device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * KIB


def _tokens(batch: MiniBatch) -> int:
    return sum(row.tokens for micros in (batch.rollouts, batch.imitation) for rows in micros for row in rows)
