"""Which tokens would be wrong if an episode's text were tokenised again. This is stored with the episode."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenDiff:
    """The first difference between two tokenisations of one text, as texts of tokens: what both have before it, and how
    each continues."""

    place: int
    before: tuple[str, ...]
    recorded: tuple[str, ...]
    naive: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EpisodeDrift:
    """`tokens` counts the recorded tokens from each chain's first reply on. If the text were tokenised again, `lost` of
    them would be missing, and `invented` tokens would appear that were never sampled."""

    tokens: int
    lost: int
    invented: int
    first: TokenDiff | None = None

    @property
    def wrong(self) -> int:
        """How many tokens would be wrong. A token that was replaced by another counts once."""
        return max(self.lost, self.invented)
