"""Checks what a device computes: a GPU that nobody has tried yet, against the CPU and against itself.

It is for the first person who has one. `loopwright doctor --gpu` prints the results.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from loopwright.core.advantage import ADVANTAGES
from loopwright.core.packing import Packed
from loopwright.engines.torch.batch import EngineBatch
from loopwright.errors import ConfigError
from loopwright.learn.attention import SharedPrefixPlan
from loopwright.learn.learner import TorchLearner
from loopwright.learn.losses import ppo_clip
from loopwright.learn.recipe import Recipe
from loopwright.models.compute import ComputeThread
from loopwright.models.device import AUTO, CPU, CUDA, chosen_device, seen_gpus
from loopwright.models.load import LoadedModel, load_model
from loopwright.testing.made_groups import random_group, row_of
from loopwright.types import GenerateRequest, Generation, Group, Sampling

P = ParamSpec("P")
T = TypeVar("T")

SAME = 1e-4
"""How much float32 may differ between two devices, relative to the norm. Each adds in an order of its own."""
SAME_LOGPROB = 1e-3
"""How much the logprob of a token may differ between engine and learner in float32."""
HALF_LOGPROB = 0.05
"""How much the logprobs of bfloat16 may differ from those of float32, on average over a probe's tokens."""
STEPS = 20
PROBE = tuple(range(5, 25))
PROMPTS, SIBLINGS = (20, 24, 200, 20, 22), 3
"""How long the prompts of the engine's groups are, and how many answers each gets."""
LENGTHS = (2048, 4096, 8192)
LINEAR = 0.2
"""How much the memory per token of a row may grow between the shortest and the longest of `LENGTHS`."""


class _InThisThread(ComputeThread):
    """Nothing else computes meanwhile."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Checked:
    """One check: what was compared, what came out, and whether that is as it should be."""

    name: str
    found: str
    passed: bool


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """A device, and the model that is computed there."""

    device: torch.device
    model: str
    cache: Path

    async def run(self) -> AsyncIterator[Checked]:
        """All checks, one after the other. Each is given as soon as it is done."""
        for window in (None, 300):
            yield self._attention(window)
        yield await self._step()
        yield await self._engine("float32", SAME_LOGPROB)
        yield await self._engine("bfloat16", HALF_LOGPROB)
        yield await self._half()
        if self.device.type == "cuda":
            yield await self._memory()
            yield self._given_back()

    def load(self, device: torch.device | str | None = None, dtype: str = "float32") -> LoadedModel:
        return load_model(self.model, cache=self.cache, device=device or self.device, dtype=dtype)

    def _attention(self, window: int | None) -> Checked:
        row = Packed(900, (0, 1), (400, 350))
        generator = torch.Generator().manual_seed(0)
        shapes = (8, 64), (2, 64), (2, 64), (8, 64)
        x = [torch.randn(row.tokens, *shape, generator=generator) for shape in shapes]
        here, there = (_attended(row, x, window, device) for device in (torch.device("cpu"), self.device))
        apart = max(_apart(one, other) for one, other in zip(there, here, strict=True))
        name = "attention against the CPU's" + ("" if window is None else f", window {window}")
        return Checked(name, f"{apart:.1e} of the norm (at most {SAME:.0e})", apart <= SAME)

    async def _step(self) -> Checked:
        gradients = []
        for device in (torch.device("cpu"), self.device):
            loaded = self.load(device)
            await _learner(loaded).step(_groups(loaded))
            gradients.append({n: p.grad.cpu() for n, p in loaded.model.named_parameters() if p.grad is not None})
        apart = max(_apart(gradients[1][name], gradient) for name, gradient in gradients[0].items())
        found = f"{apart:.1e} of the norm (at most {SAME:.0e})"
        return Checked("a step's gradients against the CPU's", found, apart <= SAME)

    async def _engine(self, dtype: str, allowed: float) -> Checked:
        loaded = self.load(dtype=dtype)
        learner, batch = _learner(loaded), EngineBatch(loaded, max_batch=len(PROMPTS) * SIBLINGS)
        told, again = list[float](), list[float]()
        for request, generation in sampled(batch):
            prompt = request.prompt_ids
            told += generation.logprobs
            again += (await learner.logprobs((*prompt, *generation.ids)))[len(prompt) - 1 :]
        batch.rest()
        apart = _mean_apart(told, again)
        found = f"{apart:.1e} per token (at most {allowed:g})"
        return Checked(f"engine against learner in {dtype}", found, apart <= allowed)

    async def _half(self) -> Checked:
        apart = await half_against_full(self.load(), self.load(dtype="bfloat16"))
        found = f"{apart:.1e} per token (at most {HALF_LOGPROB:g})"
        return Checked(f"bfloat16 against float32 after {STEPS} steps", found, apart <= HALF_LOGPROB)

    async def _memory(self) -> Checked:
        """Besides what is resident: weights, gradients and moments are there after the first step."""
        loaded = self.load()
        learner = _learner(loaded, micro_batch_tokens=max(LENGTHS))
        await learner.step(_groups(loaded))
        per_token, seconds = [], 0.0
        for length in LENGTHS:
            torch.cuda.reset_peak_memory_stats(self.device)
            resident, started = torch.cuda.memory_allocated(self.device), time.perf_counter()
            await learner.step([row_of(length, vocabulary=loaded.model.config.vocab_size)])
            seconds = time.perf_counter() - started
            per_token.append((torch.cuda.max_memory_allocated(self.device) - resident) / length)
        growth = per_token[-1] / per_token[0] - 1
        listed = ", ".join(f"{each / 1024:.0f} KiB" for each in per_token)
        found = f"{listed} per token with rows of {LENGTHS}; {LENGTHS[-1] / seconds:,.0f} tokens/s in the longest"
        return Checked("memory against row length", found, growth <= LINEAR)

    def _given_back(self) -> Checked:
        batch = EngineBatch(self.load(), max_batch=len(PROMPTS) * SIBLINGS, cache_tokens=4096)
        before = torch.cuda.memory_allocated(self.device)
        sampled(batch)
        held = torch.cuda.memory_allocated(self.device) - before
        batch.rest()
        left = torch.cuda.memory_allocated(self.device) - before
        found = f"{left / 1024:.0f} of {held / 1024:.0f} KiB are left"
        return Checked("keys and values given back at rest", found, left <= 0.1 * held)


def device_to_check(wanted: str) -> torch.device:
    """The device that `--device` names. The CPU must be named: a check of it says nothing of a GPU."""
    device = chosen_device(wanted, setting="--device")
    if device.type == CPU and wanted == AUTO:
        seen = seen_gpus()
        raise ConfigError(f"--device is auto, and there is no GPU to check: {seen.why_none}", remedy=seen.remedy)
    return device


def described(device: torch.device) -> Iterator[str]:
    """What is checked, for people and their reports."""
    if device.type == CPU:
        yield "no GPU is checked: this compares the CPU with itself"
    name = torch.cuda.get_device_name(device) if device.type == CUDA else "the CPU"
    yield f"{device}: {name}, torch {torch.__version__}"


async def half_against_full(full: LoadedModel, half: LoadedModel, steps: int = STEPS) -> float:
    """How far the logprobs of a probe are apart after the same steps in bfloat16 and in float32, per token."""
    found = []
    for loaded in (full, half):
        learner = _learner(loaded, lr=1e-4)
        for _ in range(steps):
            await learner.step(_groups(loaded))
        found.append(await learner.logprobs(PROBE))
    return _mean_apart(*found)


def sampled(batch: EngineBatch) -> list[tuple[GenerateRequest, Generation]]:
    """Groups of answers, some of which end early. The last ones of all groups end in the same step, as before a pause:
    by then rows have moved."""
    requests = [
        GenerateRequest(f"{group}.{member}", tuple(range(5 + group, 5 + group + length)), _sampling(group, member))
        for group, length in enumerate(PROMPTS)
        for member in range(SIBLINGS)
    ]
    sequences = [batch.submit(request) for request in requests]
    while not batch.idle:
        batch.step()
    return [(request, sequence.generation()) for request, sequence in zip(requests, sequences, strict=True)]


def _sampling(group: int, member: int) -> Sampling:
    is_early = not group or (group + member) % SIBLINGS == 0
    return Sampling(max_new_tokens=3 + 2 * group + member if is_early else 20, seed=10 * group + member)


def _groups(loaded: LoadedModel) -> list[Group]:
    """Some rows that are short and some that are long."""
    vocabulary = loaded.model.config.vocab_size
    return [random_group(prompt, 4, 12, vocabulary=vocabulary, draw=prompt) for prompt in (9, 40, 300)]


def _learner(loaded: LoadedModel, **settings: Any) -> TorchLearner:
    recipe = Recipe(
        advantage=ADVANTAGES["grpo"],
        loss=partial(ppo_clip, clip_low=0.2, clip_high=0.2),
        temperature=1.0,
        steps=100,
        constant_length=12,
        max_grad_norm=None,
        **settings,
    )
    return TorchLearner(loaded, recipe, _InThisThread())


def _attended(row: Packed, x: Sequence[torch.Tensor], window: int | None, device: torch.device) -> list[torch.Tensor]:
    """The output, and the gradients of queries, keys and values."""
    q, k, v, grad = (t.to(device) for t in x)
    plan = SharedPrefixPlan([row], device)
    output, total = plan.compute(q, k, v, 0.125, window)
    return [output.cpu(), *(t.cpu() for t in plan.gradients(grad, q, k, v, output, total, 0.125, window))]


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    size = float(other.double().norm())
    return float((one.double() - other.double()).norm()) / size if size else math.inf


def _mean_apart(one: Sequence[float], other: Sequence[float]) -> float:
    return float(np.abs(np.subtract(np.array(one), np.array(other))).mean())
