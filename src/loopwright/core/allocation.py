"""Splits the batches of a run among task sets by weight, so that each task set gets its exact share in the long run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import count


def shares_of_step(step: int, total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """How the `total` groups of train step `step` (the first is 1) are split in proportion to the positive `weights`.

    Each group goes to the task set that is furthest below its share of all groups so far; ties go to the first. In one
    step this is the method of largest remainders. Over several steps the remainders add up, so even the smallest weight
    gets a group at some step. Weights are exact decimals (0.1 is a tenth), so that equal remainders compare as equal.
    """
    return next(shares_after(step - 1, total, weights))


def shares_after(step: int, total: int, weights: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """The splits of all steps after `step`, in order. They equal `shares_of_step`, but each costs constant time."""
    quotas = _whole(weights)
    one = sum(quotas)
    owed = [0] * len(quotas)
    # When the exact shares are whole numbers, no task set is owed anything, and the splits repeat from there.
    period = one // math.gcd(one, total)
    for skipped in count(-(step % period)):
        owed = [debt + total * quota for debt, quota in zip(owed, quotas, strict=True)]
        shares = _pay(owed, total, one)
        owed = [debt - share * one for debt, share in zip(owed, shares, strict=True)]
        if skipped >= 0:
            yield tuple(shares)


def _whole(weights: Sequence[float]) -> list[int]:
    """The smallest whole numbers in the same proportion."""
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    return [weight // math.gcd(*whole) for weight in whole]


def _pay(owed: Sequence[int], total: int, one: int) -> list[int]:
    """Hand out `total` groups, each worth `one`."""
    left = list(owed)
    for _ in range(total):
        left[left.index(max(left))] -= one
    return [(before - after) // one for before, after in zip(owed, left, strict=True)]
