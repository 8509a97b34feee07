"""Every comparison with a peer: what is compared, and what the two define differently.

`agree` compares once our definition is turned into the peer's; without a difference of definition it compares as is.
`apart` compares as is where the definitions part, so that a difference that is named is known to be there. One that is
too small to be worth turning has a `tolerance` that covers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from loopwright.learn.losses import MAX_LOG_RATIO
from tools.parity.pairs import Pair

Pairs = Callable[[], Iterable[Pair]]

EXACT = 1e-12
"""Both sides compute in float64."""

FLOAT32 = 1e-6
"""The peer keeps a bound in float32."""

EPSILON = 1e-7
"""The peer adds a 1e-8 that we do not."""


@dataclass(frozen=True)
class Row:
    ours: str
    peer: str
    function: str
    agree: Pairs
    definition: str = ""
    apart: Pairs | None = None
    tolerance: float = EXACT


MODEST = ("near", "far")
ALL = (*MODEST, "extreme")

NO_BOUND = f"no bound on log-ratios, ours is {MAX_LOG_RATIO:.0f}"

Compared = Callable[[str], Iterable[Pair]]
"""The pairs of one batch of tokens."""


def over_batches(
    names: tuple[str, str, str],
    agree: Compared,
    definition: str = "",
    apart: Compared | None = None,
    batches: tuple[str, ...] = ALL,
    tolerance: float = EXACT,
) -> Row:
    """A row whose pairs come from batches of tokens."""
    parted = None if apart is None else lambda: _gathered(batches, apart)
    return Row(*names, lambda: _gathered(batches, agree), definition, parted, tolerance)


def _gathered(batches: tuple[str, ...], compared: Compared) -> Iterator[Pair]:
    for batch in batches:
        yield from compared(batch)
