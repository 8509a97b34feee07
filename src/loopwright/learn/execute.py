"""Carries out the plan of a train step on a model: forward passes, gradients, optimiser steps.

With one mini-batch the old logprobs are the forward pass's own, so the first ratio is exactly 1; with several they are
computed once, before the first update. SFT examples have their own micro-batches, and their gradients are added to
those of the rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from loopwright.errors import LearnerError
from loopwright.learn.body import Body
from loopwright.learn.forward import packed_logprobs
from loopwright.learn.losses import TokenBatch
from loopwright.learn.master import MasterWeights
from loopwright.learn.meter import StepMeter
from loopwright.learn.objective import token_shares
from loopwright.learn.plan import MiniBatch, Rows, StepPlan, row_of_chain
from loopwright.learn.recipe import Recipe
from loopwright.learn.room import Room
from loopwright.learn.samples import Credit, Tensors, credit_of, tensors_of
from loopwright.learn.sft import Example
from loopwright.learn.token_numbers import trained_chains
from loopwright.models.device import CPU, give_back
from loopwright.types import RolloutKey, TrainedChain

IDLE = Example.of([0], [0])
"""What a rank computes when the others have more micro-batches than it has."""


@dataclass(frozen=True, slots=True)
class Micro:
    """A micro-batch of rollouts with its layout. `old` holds the old logprobs; None means that the weights have not
    changed since."""

    rows: Rows
    tensors: Tensors
    credit: Credit
    old: torch.Tensor | None
    reference: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """What a step has found out so far. `chains` has the numbers of each trained token."""

    meter: StepMeter = field(default_factory=StepMeter)
    chains: dict[RolloutKey, list[TrainedChain]] = field(default_factory=dict)

    def add(self, other: StepNumbers) -> None:
        """Add what another rank has found out in its part of the same step."""
        self.meter.add(other.meter)
        for key, chains in other.chains.items():
            self.chains.setdefault(key, []).extend(chains)


class StepExecutor:
    """Changes the weights of one model, or of one rank's shard of it. It is used in one thread. `beat` is called after
    each micro-batch."""

    def __init__(
        self,
        recipe: Recipe,
        body: Body,
        weights: MasterWeights,
        optimizer: torch.optim.Optimizer,
        room: Room,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._recipe = recipe
        self.body = body
        self._weights = weights
        self._optimizer = optimizer
        self._room = room
        self._beat = beat
        self._idle = (
            row_of_chain(0, 1, len(IDLE.ids)),
            tensors_of([row_of_chain(0, 1, len(IDLE.ids))], [IDLE], room.device),
        )
        self._passes = 0
        """Backward passes since the last update."""

    def run(self, plan: StepPlan) -> StepNumbers:
        """Do the whole step."""
        for options in self._optimizer.param_groups:
            options["lr"] = plan.lr
        numbers = StepNumbers()
        laid_out = [self.lay_out(batch) for batch in plan.mini_batches]
        for batch, micros in zip(plan.mini_batches, laid_out, strict=True):
            self._weights.forget_gradients()
            self._passes = 0
            for micro in micros:
                self.learn_from(micro, batch, plan.step, numbers)
            for _ in range(batch.idle_rollouts):
                self._add_nothing()
            self.imitate(batch, numbers.meter)
            self._update(plan.step, numbers.meter)
        return numbers

    def rest(self) -> None:
        """To be called after a step, and after its weights have left: give back what only these need, if others
        compute on this device until the next."""
        if self._recipe.lends_device and self._room.device.type != CPU:
            self._weights.forget_gradients()
            give_back(self._room.device)

    def lay_out(self, batch: MiniBatch) -> list[Micro]:
        """The micro-batches of a mini-batch, with what the present weights and the reference say of their tokens."""
        micros = [self._lay_out(rows, batch) for rows in batch.rollouts]
        row, tensors = self._idle
        for _ in range(batch.idle_rollouts):
            self._before((row,), tensors)
        return micros

    def _lay_out(self, rows: Rows, batch: MiniBatch) -> Micro:
        device = self._room.device
        tensors = tensors_of(rows, [sample.chain for sample in batch.samples], device)
        old, reference = self._before(rows, tensors)
        return Micro(rows, tensors, credit_of(rows, batch.samples, device), old, reference)

    def _before(self, rows: Rows, tensors: Tensors) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The old and the reference logprobs of a micro-batch, where they are needed."""
        kl = self._recipe.kl
        old = self._frozen_logprobs(self.body, rows, tensors) if self._recipe.mini_batches > 1 else None
        reference = None if kl is None else kl.reference
        return old, None if reference is None else self._frozen_logprobs(reference, rows, tensors)

    @torch.no_grad()
    def _frozen_logprobs(self, body: Body, rows: Rows, tensors: Tensors) -> torch.Tensor:
        with self._room.for_rows(rows):
            logprobs = packed_logprobs(body, rows, tensors, self._recipe.temperature)[0]
        self._beat()
        return logprobs

    def learn_from(self, micro: Micro, batch: MiniBatch, step: int, numbers: StepNumbers) -> None:
        """Add the gradients of a micro-batch of rollouts."""
        with self._room.for_rows(micro.rows):
            tokens, shares = self._shares(micro, numbers.meter)
            loss = shares.sum()
            numbers.meter.staleness(tokens, step - 1 - micro.credit.versions)
            self._add_gradients(loss)
        numbers.meter.loss(loss.item())
        if self._recipe.token_numbers:
            for key, chain in trained_chains(batch, micro.rows, tokens.old_logprobs, shares):
                numbers.chains.setdefault(key, []).append(chain)

    def _shares(self, micro: Micro, meter: StepMeter) -> tuple[TokenBatch, torch.Tensor]:
        """The tokens of a micro-batch, and each one's share of the loss."""
        credit = micro.credit
        logprobs, entropy = packed_logprobs(self.body, micro.rows, micro.tensors, self._recipe.temperature)
        tokens = TokenBatch(
            logprobs=logprobs,
            old_logprobs=logprobs.detach() if micro.old is None else micro.old,
            sampled_logprobs=credit.sampled_logprobs,
            advantages=credit.advantages,
            sequence=credit.sequence,
            reference_logprobs=micro.reference,
        )
        return tokens, token_shares(self._recipe, tokens, credit.weights, entropy, meter)

    def imitate(self, batch: MiniBatch, meter: StepMeter) -> None:
        """Add the gradients of the SFT loss: the mean negative log-likelihood of an answer's tokens, averaged over the
        examples."""
        sft = self._recipe.sft
        if sft is None or not (batch.imitation or batch.idle_imitation):
            return
        total = 0.0
        for rows in batch.imitation:
            with self._room.for_rows(rows):
                loss = self._likelihood_loss(rows, batch)
                self._add_gradients(sft.coefficient * loss)
            total += loss.item()
        for _ in range(batch.idle_imitation):
            self._add_nothing()
        meter.sft_loss(total)
        meter.loss(sft.coefficient * total)

    def _likelihood_loss(self, rows: Rows, batch: MiniBatch) -> torch.Tensor:
        device = self._room.device
        tensors = tensors_of(rows, batch.examples, device)
        logprobs, _ = packed_logprobs(self.body, rows, tensors, temperature=1.0)
        lengths = torch.tensor([int(batch.examples[i].mask.sum()) for row in rows for i in row.chains], device=device)
        weights = (1.0 / (lengths * batch.example_count)).repeat_interleave(lengths)
        return -(logprobs * weights).sum()

    def _add_nothing(self) -> None:
        """Go through the model with the other ranks, and add gradients of 0."""
        row, tensors = self._idle
        self._add_gradients(0.0 * packed_logprobs(self.body, (row,), tensors, temperature=1.0)[0].sum())

    def _add_gradients(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        self._weights.gather_gradients()
        self._passes += 1
        self._beat()

    def _update(self, step: int, meter: StepMeter) -> None:
        """One optimiser step. If the gradient is not finite, it raises and changes nothing."""
        weights = list(self._weights.named.values())
        with self._room.for_update(sum(weight.numel() for weight in weights)):
            norm = total_norm([self._gradient(step, name) for name in self._weights.named])
            if not math.isfinite(norm):
                raise LearnerError(
                    f"step {step}: the gradient's norm is {norm}",
                    remedy="the same command goes on from the last checkpoint; lower learner.lr or raise learner.eps "
                    "if it happens again",
                )
            limit = self._recipe.max_grad_norm
            if limit is not None and norm > limit:
                torch.nn.utils.clip_grads_with_norm_(weights, limit, torch.tensor(norm, device=self._room.device))
            meter.grad_norm(norm)
            self._optimizer.step()
            self._weights.update_copies()

    def _gradient(self, step: int, name: str) -> torch.Tensor:
        """The weight's gradient. A mini-batch without signal gets zero gradients, so that the optimiser's momentum
        still acts."""
        weight = self._weights.named[name]
        if weight.grad is None:
            if self._passes:
                raise LearnerError(
                    f"step {step}: the backward pass gave {name} no gradient",
                    remedy="please report this with your model: training would go on without this weight",
                )
            weight.grad = torch.zeros_like(weight)
        return weight.grad


def total_norm(gradients: Sequence[torch.Tensor]) -> float:
    """The norm of all gradients together, row by row: in one sum of float32 the norm of a table of 28 million numbers
    was off by 6e-5, and with it every gradient that was clipped."""
    rows = [torch.linalg.vector_norm(one, dim=-1) if one.ndim > 1 else one for one in gradients]
    return float(torch.nn.utils.get_total_norm(rows))
