"""Splitting a batch among task sets by weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def split_by_weight(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Whole shares of `total` in proportion to the positive `weights`, by largest remainder; ties go to the first.

    Weights count as the decimals that were written: 0.1 is a tenth, so that equal remainders are seen as equal.
    """
    exact = [Fraction(str(weight)) for weight in weights]
    quotas = [total * weight / sum(exact) for weight in exact]
    shares = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda i: shares[i] - quotas[i])
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return tuple(shares)
