"""Carries out the plan of a train step on a model: forward passes, gradients, optimiser steps.

With one mini-batch the old logprobs are the forward pass's own, so the first ratio is exactly 1; with several they are
computed once, before the first update. SFT examples have their own micro-batches, and their gradients are added to
those of the rollouts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from loopwright.errors import LearnerError
from loopwright.learn.body import Body
from loopwright.learn.forward import packed_logprobs
from loopwright.learn.losses import TokenBatch
from loopwright.learn.master import MasterWeights
from loopwright.learn.meter import StepMeter
from loopwright.learn.objective import token_shares
from loopwright.learn.plan import MiniBatch, Rows, StepPlan
from loopwright.learn.recipe import Recipe
from loopwright.learn.room import Room
from loopwright.learn.samples import Credit, Tensors, credit_of, tensors_of
from loopwright.learn.token_numbers import trained_chains
from loopwright.types import RolloutKey, TrainedChain


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


class StepExecutor:
    """Changes the weights of one model. It is used in one thread."""

    def __init__(
        self, recipe: Recipe, body: Body, weights: MasterWeights, optimizer: torch.optim.Optimizer, room: Room
    ) -> None:
        self._recipe = recipe
        self.body = body
        self._weights = weights
        self._optimizer = optimizer
        self._room = room

    def run(self, plan: StepPlan) -> StepNumbers:
        """Do the whole step."""
        for options in self._optimizer.param_groups:
            options["lr"] = plan.lr
        numbers = StepNumbers()
        laid_out = [self.lay_out(batch) for batch in plan.mini_batches]
        for batch, micros in zip(plan.mini_batches, laid_out, strict=True):
            self._weights.forget_gradients()
            for micro in micros:
                self.learn_from(micro, batch, plan.step, numbers)
            self.imitate(batch, numbers.meter)
            self._update(plan.step, numbers.meter)
        return numbers

    def lay_out(self, batch: MiniBatch) -> list[Micro]:
        """The micro-batches of a mini-batch, with what the present weights and the reference say of their tokens."""
        return [self._lay_out(rows, batch) for rows in batch.rollouts]

    def _lay_out(self, rows: Rows, batch: MiniBatch) -> Micro:
        device = self._room.device
        tensors = tensors_of(rows, [sample.chain for sample in batch.samples], device)
        kl = self._recipe.kl
        return Micro(
            rows,
            tensors,
            credit_of(rows, batch.samples, device),
            old=self._frozen_logprobs(self.body, rows, tensors) if self._recipe.mini_batches > 1 else None,
            reference=None if kl is None else self._frozen_logprobs(kl.reference, rows, tensors),
        )

    @torch.no_grad()
    def _frozen_logprobs(self, body: Body, rows: Rows, tensors: Tensors) -> torch.Tensor:
        with self._room.for_rows(rows):
            return packed_logprobs(body, rows, tensors, self._recipe.temperature)[0]

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
        if sft is None or not batch.imitation:
            return
        total = 0.0
        for rows in batch.imitation:
            with self._room.for_rows(rows):
                loss = self._likelihood_loss(rows, batch)
                self._add_gradients(sft.coefficient * loss)
            total += loss.item()
        meter.sft_loss(total)
        meter.loss(sft.coefficient * total)

    def _likelihood_loss(self, rows: Rows, batch: MiniBatch) -> torch.Tensor:
        device = self._room.device
        tensors = tensors_of(rows, batch.examples, device)
        logprobs, _ = packed_logprobs(self.body, rows, tensors, temperature=1.0)
        lengths = torch.tensor([int(batch.examples[i].mask.sum()) for row in rows for i in row.chains], device=device)
        weights = (1.0 / (lengths * batch.example_count)).repeat_interleave(lengths)
        return -(logprobs * weights).sum()

    def _add_gradients(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        self._weights.gather_gradients()

    def _update(self, step: int, meter: StepMeter) -> None:
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
                f"step {step}: the gradient's norm is {norm}",
                remedy="the same command goes on from the last checkpoint; lower learner.lr or raise learner.eps if it "
                "happens again",
            )
        if limit is not None and norm > limit:
            torch.nn.utils.clip_grads_with_norm_(weights, limit, torch.tensor(norm, device=self._room.device))
        meter.grad_norm(norm)
        with self._room.for_update(sum(weight.numel() for weight in weights)):
            self._optimizer.step()
        self._weights.update_copies()
