"""What tokenising an episode's text again would have got wrong, as it is kept with the episode."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenDiff:
    """Where two spellings of one text part for the first time, in the texts of tokens: what both have before, and how
    each goes on."""

    place: int
    before: tuple[str, ...]
    recorded: tuple[str, ...]
    naive: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EpisodeDrift:
    """Of `tokens` recorded ones, from each chain's first reply on, `lost` would be missing, and `invented` ones would
    stand there that never were."""

    tokens: int
    lost: int
    invented: int
    first: TokenDiff | None = None

    @property
    def wrong(self) -> int:
        """How many tokens would be wrong; one that became another counts once."""
        return max(self.lost, self.invented)
