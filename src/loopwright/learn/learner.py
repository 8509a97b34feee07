"""The learner: groups in, better weights out.

A train step: advantages -> samples -> mini-batches -> packed micro-batches -> loss and gradients -> AdamW. With one
mini-batch the old logprobs are the forward pass's own, so the first ratio is exactly 1; with several they are
computed once, before the first update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loopwright.core.advantage import Advantage
from loopwright.core.packing import Packed, micro_batches, pack
from loopwright.core.schedule import learning_rate
from loopwright.errors import LearnerError
from loopwright.learn import state
from loopwright.learn.forward import packed_logprobs
from loopwright.learn.losses import importance
from loopwright.learn.meter import Meter
from loopwright.learn.samples import Sample, Tensors, samples_of, tensors_of
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.ports.learner import StepReport
from loopwright.types import Aggregate, Group, Schedule

TokenLoss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(logprobs, old logprobs, advantages) of each token -> loss of each token."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is optimised, and how."""

    advantage: Advantage
    loss: TokenLoss
    temperature: float
    steps: int
    lr: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: int = 0
    max_grad_norm: float | None = 1.0
    aggregate: Aggregate = Aggregate.SEQUENCE
    importance_cap: float | None = 2.0
    mini_batches: int = 1
    micro_batch_tokens: int = 4096


@dataclass(frozen=True, slots=True)
class _Micro:
    """A micro-batch, laid out."""

    rows: list[Packed]
    tensors: Tensors
    old: torch.Tensor | None


class TorchLearner:
    """Trains the parameters of `loaded` in place, in the compute thread."""

    def __init__(self, loaded: LoadedModel, recipe: Recipe, compute: ComputeThread) -> None:
        self._loaded = loaded
        self._model: Any = loaded.model
        self._recipe = recipe
        self._compute = compute
        self._version = 0
        self._optimizer = torch.optim.AdamW(
            loaded.model.parameters(),
            lr=recipe.lr,
            betas=recipe.betas,
            eps=recipe.eps,
            weight_decay=recipe.weight_decay,
            fused=True,
        )

    @property
    def version(self) -> int:
        return self._version

    async def step(self, groups: Sequence[Group]) -> StepReport:
        return await self._compute.run(self._step, groups)

    async def save(self, folder: Path) -> None:
        await self._compute.run(self._save, folder)

    async def load(self, folder: Path) -> None:
        self._version = await self._compute.run(state.load, folder, self._model, self._optimizer)

    async def export(self, folder: Path) -> None:
        await self._compute.run(self._export, folder)

    def _save(self, folder: Path) -> None:
        state.save(folder, self._model, self._optimizer, self._version)
        # With these two the checkpoint is also a model folder that transformers loads.
        self._model.config.save_pretrained(folder)
        self._loaded.tokenizer.save_pretrained(folder)

    def _export(self, folder: Path) -> None:
        self._model.save_pretrained(folder)
        self._loaded.tokenizer.save_pretrained(folder)

    def _step(self, groups: Sequence[Group]) -> StepReport:
        recipe, meter = self._recipe, Meter()
        rate = learning_rate(
            self._version + 1,
            peak=recipe.lr,
            schedule=recipe.schedule,
            warmup=recipe.warmup_steps,
            steps=recipe.steps,
        )
        for options in self._optimizer.param_groups:
            options["lr"] = rate
        for mini_batch in self._mini_batches(groups):
            self._update(mini_batch, meter)
        self._version += 1
        return StepReport(self._version, {"lr": rate, **meter.metrics()})

    def _mini_batches(self, groups: Sequence[Group]) -> list[list[_Micro]]:
        recipe = self._recipe
        parts = [groups[i :: recipe.mini_batches] for i in range(recipe.mini_batches)]
        batches = []
        for part in parts:
            samples = samples_of(part, recipe.advantage, recipe.aggregate)
            batches.append([self._lay_out(rows, samples) for rows in self._micro_batches(samples)])
        return batches

    def _micro_batches(self, samples: Sequence[Sample]) -> list[list[Packed]]:
        members: dict[int, list[int]] = {}
        for index, sample in enumerate(samples):
            members.setdefault(sample.group, []).append(index)
        rows = pack(list(members.values()), [sample.chain for sample in samples])
        return micro_batches(rows, self._recipe.micro_batch_tokens)

    def _lay_out(self, rows: list[Packed], samples: Sequence[Sample]) -> _Micro:
        tensors = tensors_of(rows, samples, self._model.device)
        old = None
        if self._recipe.mini_batches > 1:
            with torch.no_grad():
                old = packed_logprobs(self._model, rows, tensors, self._recipe.temperature)[0]
        return _Micro(rows, tensors, old)

    def _update(self, mini_batch: Sequence[_Micro], meter: Meter) -> None:
        recipe = self._recipe
        for parameter in self._model.parameters():
            # Zeros rather than None: a mini-batch without signal still lets the optimiser's momentum act.
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.zero_()
        for micro in mini_batch:
            data = micro.tensors
            logprobs, entropy = packed_logprobs(self._model, micro.rows, data, recipe.temperature)
            old = logprobs.detach() if micro.old is None else micro.old
            correction = importance(old, data.sampled_logprobs, recipe.importance_cap)
            loss = (recipe.loss(logprobs, old, data.advantages) * correction * data.weights).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            meter.tokens(logprobs.detach(), old, data.sampled_logprobs, correction, entropy)
            meter.loss(loss.item())
        limit = float("inf") if recipe.max_grad_norm is None else recipe.max_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), limit))
        if not math.isfinite(norm):
            raise LearnerError(
                f"step {self._version + 1}: the gradient's norm is {norm}",
                remedy="the same command goes on from the last checkpoint; lower learner.lr or raise learner.eps if it "
                "happens again",
            )
        meter.grad_norm(norm)
        self._optimizer.step()
