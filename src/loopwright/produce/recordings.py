"""What the gateway's recording has kept exact, in numbers: chains, why they began, and drift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from loopwright.types import ChainStart, Episode

FORKS = tuple(start for start in ChainStart if start is not ChainStart.FIRST)
"""Why there can be another chain than the first."""


def recording_numbers(episodes: Iterable[Episode]) -> dict[str, float]:
    """Sums over the episodes whose drift was measured, which are those of agents that talk to the gateway. Without one
    there is nothing to tell."""
    measured = [episode for episode in episodes if episode.drift is not None]
    if not measured:
        return {}
    chains = [chain for episode in measured for chain in episode.chains]
    starts = Counter(chain.start for chain in chains)
    drifts = [episode.drift for episode in measured if episode.drift is not None]
    return {
        "chains/recorded": float(len(chains)),
        "chains/trained": float(sum(chain.trained for chain in chains)),
        **{f"chains/forks_{start}": float(starts[start]) for start in FORKS},
        "drift/tokens": float(sum(drift.tokens for drift in drifts)),
        "drift/wrong": float(sum(drift.wrong for drift in drifts)),
    }
