"""Advantages: how much better each rollout did than expected. Each advantage is a small pure function.

It gets all groups of a train step at once, because some advantages compare across groups. Those that compare within a
group give zeros, never NaN, to a group of one or of equal rewards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

EPSILON = 1e-6
"""Added to the standard deviation of a group, as verl does. Peers differ, see docs/maths.md."""

WHITENING_EPSILON = 1e-8
"""Added to the variance over a batch, as verl does."""

INDISTINGUISHABLE = 1e-5
"""Rewards whose spread is at most this (times the largest reward, if that is above 1) count as equal. Dividing by their
standard deviation would turn rounding noise into a full-size advantage."""


@dataclass(frozen=True, slots=True)
class Scores:
    """One group's members, in order: the reward of each, and how many tokens it sampled in all its chains."""

    rewards: tuple[float, ...]
    lengths: tuple[int, ...]


Advantage = Callable[[Sequence[Scores]], Sequence[Sequence[float]]]
"""All groups of a train step -> the advantage of every member of each."""

GroupAdvantage = Callable[[Scores], tuple[float, ...]]


def per_group(advantage: GroupAdvantage) -> Advantage:
    """An advantage that looks at one group at a time, for a whole batch."""
    return lambda groups: [advantage(group) for group in groups]


def grpo(group: Scores) -> tuple[float, ...]:
    """Reward minus the group's mean, over its sample standard deviation (GRPO)."""
    centred = grpo_no_std(group)
    if not any(centred):
        return centred
    std = math.hypot(*centred) / math.sqrt(len(centred) - 1)
    return tuple(c / (std + EPSILON) for c in centred)


def grpo_no_std(group: Scores) -> tuple[float, ...]:
    """Reward minus the group's mean (Dr. GRPO)."""
    if teaches_nothing(group.rewards):
        return _zeros(group)
    mean = math.fsum(group.rewards) / len(group.rewards)
    return tuple(r - mean for r in group.rewards)


def rloo(group: Scores) -> tuple[float, ...]:
    """Reward minus the mean of the other members (REINFORCE, leave one out)."""
    size = len(group.rewards)
    return tuple(c * size / (size - 1) if c else 0.0 for c in grpo_no_std(group))


def opo(group: Scores) -> tuple[float, ...]:
    """Reward minus the group's mean weighted by length: the baseline of least variance (OPO)."""
    if teaches_nothing(group.rewards) or not any(group.lengths):
        return _zeros(group)
    baseline = _weighted_mean(group.rewards, group.lengths)
    return tuple(r - baseline for r in group.rewards)


def pass_at_k_advantage(group: Scores, k: int) -> tuple[float, ...]:
    """How much the member adds to the best of k - 1 siblings, averaged over all sets of k - 1 siblings. This gives a
    gradient of the best of k.

    If the siblings are sorted by reward, the best of a random set is number j (from 0) in C(j, k - 2) of
    C(n - 1, k - 1) sets. A group with fewer than k members uses all its members.
    """
    rewards, size = group.rewards, len(group.rewards)
    if teaches_nothing(rewards):
        return _zeros(group)
    k = min(k, size)
    sets = math.comb(size - 1, k - 1)
    shares = [math.comb(j, k - 2) / sets for j in range(size - 1)]
    ranked = sorted(range(size), key=rewards.__getitem__)
    found = [0.0] * size
    for member in ranked:
        siblings = [rewards[other] for other in ranked if other != member]
        gains = (share * max(0.0, rewards[member] - best) for share, best in zip(shares, siblings, strict=True))
        found[member] = math.fsum(gains)
    return tuple(found)


def reinforce_pp(groups: Sequence[Scores]) -> list[tuple[float, ...]]:
    """Reward, whitened over the batch's tokens (REINFORCE++ with one reward at the end and no discount).

    Groups do not matter here: a rollout is compared with the whole batch, so a group of equal rewards can have an
    advantage.
    """
    return _whitened(groups, [group.rewards for group in groups])


def reinforce_pp_baseline(groups: Sequence[Scores]) -> list[tuple[float, ...]]:
    """Reward minus the group's mean, then whitened over the batch's tokens (REINFORCE++-baseline).

    Whitening would give a group of equal rewards a value other than zero. Here it stays at zero, and only counts in the
    batch's mean and variance.
    """
    centred = [grpo_no_std(group) for group in groups]
    whitened = _whitened(groups, centred)
    return [w if any(c) else c for w, c in zip(whitened, centred, strict=True)]


def teaches_nothing(rewards: Sequence[float]) -> bool:
    """Whether no member is better than another: there is one member, or the rewards are equal except for rounding."""
    if len(rewards) < 2:
        return True
    return max(rewards) - min(rewards) <= INDISTINGUISHABLE * max(1.0, *(abs(r) for r in rewards))


def _whitened(groups: Sequence[Scores], values: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Each member's value minus the mean over all tokens, divided by their standard deviation."""
    every = [pair for group, members in zip(groups, values, strict=True) for pair in _with_tokens(group, members)]
    if teaches_nothing([value for value, _ in every]):
        return [_zeros(group) for group in groups]
    flat, lengths = zip(*every, strict=True)
    mean = _weighted_mean(flat, lengths)
    spread = math.hypot(*(math.sqrt(n) * (v - mean) for v, n in every))
    scale = math.hypot(spread / math.sqrt(sum(lengths) - 1), math.sqrt(WHITENING_EPSILON))
    return [tuple((v - mean) / scale for v in members) for members in values]


def _with_tokens(group: Scores, values: Sequence[float]) -> list[tuple[float, int]]:
    return [(value, length) for value, length in zip(values, group.lengths, strict=True) if length]


def _weighted_mean(values: Sequence[float], weights: Sequence[int]) -> float:
    total = sum(weights)
    return math.fsum(value * (weight / total) for value, weight in zip(values, weights, strict=True))


def _zeros(group: Scores) -> tuple[float, ...]:
    return (0.0,) * len(group.rewards)


ADVANTAGES: dict[str, Advantage] = {
    "grpo": per_group(grpo),
    "grpo_no_std": per_group(grpo_no_std),
    "rloo": per_group(rloo),
    "opo": per_group(opo),
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
}
"""The advantages without settings, by their names in the config."""
