"""The learner: groups in, better weights out.

A train step: advantages -> samples -> mini-batches -> packed micro-batches -> loss and gradients -> AdamW. Advantages
are computed once, over all groups of the step. With one mini-batch the old logprobs are the forward pass's own, so the
first ratio is exactly 1; with several they are computed once, before the first update. SFT examples are packed into
their own micro-batches, and their gradients are added to those of the rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from loopwright.core.packing import Packed, micro_batches, pack
from loopwright.core.schedule import learning_rate
from loopwright.core.weighting import token_weights
from loopwright.errors import LearnerError
from loopwright.learn import state
from loopwright.learn.body import Body, body_of
from loopwright.learn.forward import packed_logprobs
from loopwright.learn.losses import TokenBatch
from loopwright.learn.master import MasterWeights
from loopwright.learn.meter import StepMeter
from loopwright.learn.objective import rollout_loss
from loopwright.learn.publishing import stream_weights
from loopwright.learn.recipe import Recipe
from loopwright.learn.room import Room
from loopwright.learn.samples import Credit, Sample, Tensors, credit_of, samples_of, scores_of, tensors_of
from loopwright.learn.sft import Example
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.ports import WeightSink
from loopwright.ports.learner import StepReport
from loopwright.types import Group

FUSED = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class _Micro:
    """A micro-batch of rollouts with its layout. `old` holds the old logprobs; None means that the weights have not
    changed since."""

    rows: list[Packed]
    tensors: Tensors
    credit: Credit
    old: torch.Tensor | None
    reference: torch.Tensor | None


class TorchLearner:
    """Trains the parameters of `loaded` in place, in the compute thread. It must be constructed in that thread too,
    because the constructor computes."""

    def __init__(self, loaded: LoadedModel, recipe: Recipe, compute: ComputeThread) -> None:
        self._loaded = loaded
        self._model: Any = loaded.model
        self._body = body_of(loaded, checkpointed=recipe.checkpoint_activations)
        self._room = Room(loaded.model.device, recipe.micro_batch_tokens, recipe.checkpoint_activations)
        self._recipe = recipe
        self._compute = compute
        self._version = 0
        self._weights = MasterWeights(loaded.model)
        self._optimizer = torch.optim.AdamW(
            self._weights.named.values(),
            lr=recipe.lr,
            betas=recipe.betas,
            eps=recipe.eps,
            weight_decay=recipe.weight_decay,
            # Elsewhere torch has no fused kernel.
            fused=loaded.model.device.type in FUSED,
        )

    @property
    def version(self) -> int:
        return self._version

    @property
    def describes(self) -> str:
        """Where and how it computes, for people."""
        dtype = str(self._model.dtype).removeprefix("torch.")
        return f"{dtype} on {self._model.device}, by {self._body.name}"

    async def step(self, groups: Sequence[Group]) -> StepReport:
        return await self._compute.run(self._step, groups)

    async def save(self, folder: Path) -> None:
        await self._compute.run(self._save, folder)

    async def load(self, folder: Path) -> None:
        self._version = await self._compute.run(self._load, folder)

    async def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> tuple[float, ...]:
        return await self._compute.run(self._logprobs, ids, temperature)

    async def publish(self, sink: WeightSink) -> None:
        await self._compute.run(stream_weights, dict(self._model.named_parameters()), sink)

    async def export(self, folder: Path) -> None:
        await self._compute.run(self._export, folder)

    def _load(self, folder: Path) -> int:
        version = state.load_state(folder, self._weights.named, self._optimizer)
        self._weights.update_copies()
        return version

    def _save(self, folder: Path) -> None:
        state.save_state(folder, self._weights.named, self._optimizer, self._version)
        # With these two files the checkpoint is also a model folder that transformers can load.
        self._model.config.save_pretrained(folder)
        self._loaded.tokenizer.save_pretrained(folder)

    @torch.no_grad()
    def _logprobs(self, ids: Sequence[int], temperature: float) -> tuple[float, ...]:
        example = Example.of(ids[:1], ids[1:])
        rows = [_row(0, example)]
        tensors = tensors_of(rows, [example], self._model.device)
        return tuple(packed_logprobs(self._body, rows, tensors, temperature)[0].tolist())

    def _export(self, folder: Path) -> None:
        self._model.save_pretrained(folder)
        self._loaded.tokenizer.save_pretrained(folder)

    def _step(self, groups: Sequence[Group]) -> StepReport:
        recipe, meter = self._recipe, StepMeter()
        rate = learning_rate(
            self._version + 1,
            peak=recipe.lr,
            schedule=recipe.schedule,
            warmup=recipe.warmup_steps,
            steps=recipe.steps,
        )
        for options in self._optimizer.param_groups:
            options["lr"] = rate
        mini_batches = self._mini_batches(groups)
        for rollouts, examples in zip(mini_batches, self._examples(len(mini_batches)), strict=True):
            self._weights.forget_gradients()
            self._learn_from(rollouts, meter)
            self._imitate(examples, meter)
            self._update(meter)
        self._version += 1
        return StepReport(self._version, {"lr": rate, **meter.metrics()})

    def _mini_batches(self, groups: Sequence[Group]) -> list[list[_Micro]]:
        recipe = self._recipe
        # A step with few groups makes few updates: an update without groups would still change the weights (momentum).
        parts = max(1, min(recipe.mini_batches, len(groups)))
        advantages = recipe.advantage([scores_of(group) for group in groups])
        judged = list(zip(groups, advantages, strict=True))
        weigh = partial(token_weights, aggregate=recipe.aggregate, constant_length=recipe.constant_length)
        batches = []
        for part in range(parts):
            samples = samples_of(judged[part::parts], weigh, idle=recipe.trains_idle_chains)
            batches.append([self._lay_out(rows, samples) for rows in self._micro_batches(samples)])
        return batches

    def _micro_batches(self, samples: Sequence[Sample]) -> list[list[Packed]]:
        members: dict[int, list[int]] = {}
        for index, sample in enumerate(samples):
            members.setdefault(sample.group, []).append(index)
        rows = pack(list(members.values()), [sample.chain for sample in samples])
        return micro_batches(rows, self._recipe.micro_batch_tokens)

    def _lay_out(self, rows: list[Packed], samples: Sequence[Sample]) -> _Micro:
        tensors = tensors_of(rows, [sample.chain for sample in samples], self._model.device)
        kl = self._recipe.kl
        return _Micro(
            rows,
            tensors,
            credit_of(rows, samples, self._model.device),
            old=self._frozen_logprobs(self._body, rows, tensors) if self._recipe.mini_batches > 1 else None,
            reference=None if kl is None else self._frozen_logprobs(kl.reference, rows, tensors),
        )

    @torch.no_grad()
    def _frozen_logprobs(self, body: Body, rows: list[Packed], tensors: Tensors) -> torch.Tensor:
        with self._room.for_rows(rows):
            return packed_logprobs(body, rows, tensors, self._recipe.temperature)[0]

    def _examples(self, parts: int) -> list[list[Example]]:
        """The SFT examples of each mini-batch of the next step."""
        sft = self._recipe.sft
        examples = [] if sft is None else sft.at(self._version + 1)
        return [examples[part::parts] for part in range(parts)]

    def _learn_from(self, mini_batch: Sequence[_Micro], meter: StepMeter) -> None:
        for micro in mini_batch:
            with self._room.for_rows(micro.rows):
                self._learn_from_micro(micro, meter)

    def _learn_from_micro(self, micro: _Micro, meter: StepMeter) -> None:
        credit = micro.credit
        logprobs, entropy = packed_logprobs(self._body, micro.rows, micro.tensors, self._recipe.temperature)
        batch = TokenBatch(
            logprobs=logprobs,
            old_logprobs=logprobs.detach() if micro.old is None else micro.old,
            sampled_logprobs=credit.sampled_logprobs,
            advantages=credit.advantages,
            sequence=credit.sequence,
            reference_logprobs=micro.reference,
        )
        loss = rollout_loss(self._recipe, batch, credit.weights, entropy, meter)
        meter.staleness(batch, self._version - credit.versions)
        self._add_gradients(loss)
        meter.loss(loss.item())

    def _imitate(self, examples: Sequence[Example], meter: StepMeter) -> None:
        """Add the gradients of the SFT loss: the mean negative log-likelihood of an answer's tokens, averaged over the
        examples."""
        sft = self._recipe.sft
        if sft is None or not examples:
            return
        rows = [_row(index, example) for index, example in enumerate(examples)]
        total = 0.0
        for micro in micro_batches(rows, self._recipe.micro_batch_tokens):
            with self._room.for_rows(micro):
                loss = self._likelihood_loss(micro, examples)
                self._add_gradients(sft.coefficient * loss)
            total += loss.item()
        meter.sft_loss(total)
        meter.loss(sft.coefficient * total)

    def _likelihood_loss(self, micro: list[Packed], examples: Sequence[Example]) -> torch.Tensor:
        device = self._model.device
        tensors = tensors_of(micro, examples, device)
        logprobs, _ = packed_logprobs(self._body, micro, tensors, temperature=1.0)
        lengths = torch.tensor([int(examples[i].mask.sum()) for row in micro for i in row.chains], device=device)
        weights = (1.0 / (lengths * len(examples))).repeat_interleave(lengths)
        return -(logprobs * weights).sum()

    def _add_gradients(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        self._weights.gather_gradients()

    def _update(self, meter: StepMeter) -> None:
        """One optimiser step. If the gradient is not finite, it raises and changes nothing."""
        weights, limit = list(self._weights.named.values()), self._recipe.max_grad_norm
        gradients = []
        for weight in weights:
            if weight.grad is None:
                # A mini-batch without signal gets zero gradients, so that the optimiser's momentum still acts.
                weight.grad = torch.zeros_like(weight)
            gradients.append(weight.grad)
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not math.isfinite(norm):
            raise LearnerError(
                f"step {self._version + 1}: the gradient's norm is {norm}",
                remedy="the same command goes on from the last checkpoint; lower learner.lr or raise learner.eps if it "
                "happens again",
            )
        if limit is not None and norm > limit:
            torch.nn.utils.clip_grads_with_norm_(weights, limit, torch.tensor(norm, device=self._model.device))
        meter.grad_norm(norm)
        with self._room.for_update(sum(weight.numel() for weight in weights)):
            self._optimizer.step()
        self._weights.update_copies()


def _row(index: int, example: Example) -> Packed:
    """An example in its own row: its prompt, then its answer without the last token."""
    prompt = int(example.mask.argmax())
    return Packed(prompt, (index,), (len(example.ids) - 1 - prompt,))
