"""What a train step will compute: a plan, made once from the step's groups, that any executor can carry out.

Everything that depends on the whole step is decided here: advantages over all groups, token weights over a mini-batch,
the learning rate, and which chains share a micro-batch. So a plan can be cut into parts for several ranks, and the sums
over the parts are those of the whole. It holds no tensors of torch and no functions, so it can be pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from loopwright.core.packing import Packed, micro_batches, pack
from loopwright.core.schedule import learning_rate
from loopwright.core.weighting import token_weights
from loopwright.learn.recipe import Recipe
from loopwright.learn.samples import JudgedRollout, Sample, judged_rollouts, samples_of, scores_of
from loopwright.learn.sft import Example
from loopwright.types import Group, TrainedRollout

Rows = tuple[Packed, ...]
"""One micro-batch."""


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """What one optimiser step is computed from. `rollouts` are micro-batches whose rows are indices into `samples`, and
    `imitation` those of the SFT examples. The SFT loss is a mean over `example_count` examples.

    Ranks compute equally many micro-batches, because each is a collective of all. So in the part of a rank, so many
    `idle_rollouts` and `idle_imitation` follow, which count for nothing."""

    samples: tuple[Sample, ...]
    rollouts: tuple[Rows, ...]
    examples: tuple[Example, ...] = ()
    imitation: tuple[Rows, ...] = ()
    example_count: int = 0
    idle_rollouts: int = 0
    idle_imitation: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Train step number `step`, with learning rate `lr`. `rollouts` are all rollouts with an episode, in the order of
    the groups, without what is not computed yet."""

    step: int
    lr: float
    mini_batches: tuple[MiniBatch, ...]
    rollouts: tuple[TrainedRollout, ...]


def plan_step(recipe: Recipe, groups: Sequence[Group], step: int) -> StepPlan:
    """The plan of train step `step`, the first of which is 1."""
    # A step with few groups makes few updates: an update without groups would still change the weights (momentum).
    parts = max(1, min(recipe.mini_batches, len(groups)))
    advantages = recipe.advantage([scores_of(group) for group in groups])
    scored = list(zip(groups, advantages, strict=True))
    weigh = partial(token_weights, aggregate=recipe.aggregate, constant_length=recipe.constant_length)
    judged = [judged_rollouts(scored[part::parts], weigh) for part in range(parts)]
    examples = [] if recipe.sft is None else recipe.sft.at(step)
    return StepPlan(
        step,
        learning_rate(step, peak=recipe.lr, schedule=recipe.schedule, warmup=recipe.warmup_steps, steps=recipe.steps),
        tuple(
            _mini_batch(recipe, samples_of(part, idle=recipe.trains_idle_chains), examples[number::parts])
            for number, part in enumerate(judged)
        ),
        _in_order(judged),
    )


def _in_order(judged: Sequence[Sequence[JudgedRollout]]) -> tuple[TrainedRollout, ...]:
    """Mini-batch number i has every so-many-th group of the step, beginning with group i."""
    placed = [(part + one.group * len(judged), one) for part, rollouts in enumerate(judged) for one in rollouts]
    ordered = sorted(placed, key=lambda pair: pair[0])
    return tuple(TrainedRollout(one.rollout.key, one.advantage, one.weight) for _, one in ordered)


def _mini_batch(recipe: Recipe, samples: Sequence[Sample], examples: Sequence[Example]) -> MiniBatch:
    members: dict[int, list[int]] = {}
    for index, sample in enumerate(samples):
        members.setdefault(sample.group, []).append(index)
    rows = pack(list(members.values()), [sample.chain for sample in samples])
    alone = [_row(index, example) for index, example in enumerate(examples)]
    return MiniBatch(
        tuple(samples),
        _split(rows, recipe.micro_batch_tokens),
        tuple(examples),
        _split(alone, recipe.micro_batch_tokens),
        len(examples),
    )


def _split(rows: Sequence[Packed], max_tokens: int) -> tuple[Rows, ...]:
    return tuple(map(tuple, micro_batches(rows, max_tokens)))


def _row(index: int, example: Example) -> Packed:
    """An example in its own row."""
    return row_of_chain(index, int(example.mask.argmax()), len(example.ids))


def row_of_chain(index: int, prompt: int, length: int) -> Packed:
    """A chain in a row of its own: its prompt, then the rest without the last token."""
    return Packed(prompt, (index,), (length - 1 - prompt,))
