"""The learner: groups in, better weights out.

A train step: advantages -> samples -> mini-batches -> packed micro-batches (`learn.plan`) -> loss and gradients ->
AdamW (`learn.execute`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from loopwright.learn import state
from loopwright.learn.execute import StepExecutor
from loopwright.learn.forward import packed_logprobs
from loopwright.learn.master import MasterWeights
from loopwright.learn.plan import plan_step, row_of_chain
from loopwright.learn.recipe import Recipe
from loopwright.learn.room import MOMENT_BYTES, Room
from loopwright.learn.samples import tensors_of
from loopwright.learn.sft import Example
from loopwright.learn.token_numbers import with_chains
from loopwright.learn.trained import Trained, WholeModel
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.ports import WeightSink
from loopwright.ports.learner import StepReport
from loopwright.types import Group

FUSED = ("cpu", "cuda")


def optimizer_of(weights: MasterWeights, recipe: Recipe, device: torch.device) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        weights.named.values(),
        lr=recipe.lr,
        betas=recipe.betas,
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
        # Elsewhere torch has no fused kernel.
        fused=device.type in FUSED,
    )


class TorchLearner:
    """Trains the parameters of `loaded` in place, or `trained` instead, in the compute thread. It must be constructed
    in that thread too, because the constructor computes."""

    def __init__(
        self, loaded: LoadedModel, recipe: Recipe, compute: ComputeThread, trained: Trained | None = None
    ) -> None:
        self._loaded = loaded
        self._model: Any = loaded.model
        self._trained = trained or WholeModel(loaded)
        self._recipe = recipe
        self._compute = compute
        self._version = 0
        self._room = Room(loaded.model.device, recipe.micro_batch_tokens, recipe.checkpoint_activations)
        masters = MasterWeights.bytes_of(self._trained.parameters)
        with self._room.for_state(masters, "weights in float32, which the optimiser changes"):
            self._weights = MasterWeights(self._trained.parameters)
        self._optimizer = optimizer_of(self._weights, recipe, loaded.model.device)
        self._executor = StepExecutor(
            recipe,
            self._trained.body(checkpointed=recipe.checkpoint_activations),
            self._weights,
            self._optimizer,
            self._room,
        )

    @property
    def version(self) -> int:
        return self._version

    @property
    def describes(self) -> str:
        """Where and how it computes, for people."""
        dtype = str(self._model.dtype).removeprefix("torch.")
        return f"{dtype} on {self._model.device}, by {self._executor.body.name}"

    def standing(self) -> tuple[()]:
        return ()

    async def step(self, groups: Sequence[Group]) -> StepReport:
        return await self._compute.run(self._step, groups)

    async def save(self, folder: Path) -> None:
        await self._compute.run(self._save, folder)

    async def load(self, folder: Path) -> None:
        self._version = await self._compute.run(self._load, folder)

    async def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> tuple[float, ...]:
        return await self._compute.run(self._logprobs, ids, temperature)

    async def publish(self, sink: WeightSink) -> None:
        await self._compute.run(self._publish, sink)

    async def export(self, folder: Path) -> None:
        await self._compute.run(self._export, folder)

    def _load(self, folder: Path) -> int:
        self._trained.check(folder)
        moments = MOMENT_BYTES * sum(weight.numel() for weight in self._weights.named.values())
        with self._room.for_state(moments, "a checkpoint's moments of AdamW"):
            version = state.load_state(folder, self._weights.named, self._optimizer, self._trained.file)
            self._weights.update_copies()
        return version

    def _save(self, folder: Path) -> None:
        state.save_state(folder, self._weights.named, self._optimizer, self._version, self._trained.file)
        self._trained.describe(folder)

    def _publish(self, sink: WeightSink) -> None:
        self._trained.publish(sink)
        self._executor.rest()

    def _export(self, folder: Path) -> None:
        with state.while_written(folder):
            self._trained.export(folder)

    @torch.no_grad()
    def _logprobs(self, ids: Sequence[int], temperature: float) -> tuple[float, ...]:
        example = Example.of(ids[:1], ids[1:])
        rows = (row_of_chain(0, 1, len(ids)),)
        tensors = tensors_of(rows, [example], self._model.device)
        return tuple(packed_logprobs(self._executor.body, rows, tensors, temperature)[0].tolist())

    def _step(self, groups: Sequence[Group]) -> StepReport:
        plan = plan_step(self._recipe, groups, self._version + 1)
        numbers = self._executor.run(plan)
        self._executor.rest()
        self._version = plan.step
        metrics = {"lr": plan.lr, **numbers.meter.metrics()}
        return StepReport(self._version, metrics, with_chains(plan.rollouts, numbers.chains))
