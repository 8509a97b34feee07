"""The engine's state of a live request."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from loopwright.engines.torch.cache import Row
from loopwright.engines.torch.grammar import GrammarState
from loopwright.errors import ConstraintError
from loopwright.types import FinishReason, GenerateRequest, Generation
from loopwright.types.sampling import Likeliest


@dataclass(slots=True, eq=False)
class Prefix:
    """A prompt, computed once for all requests that share it, and the logits after its last token. The keys of its
    first `known` tokens were copied from the cache."""

    ids: tuple[int, ...]
    row: Row | None = None
    known: int = 0
    logits: torch.Tensor | None = None
    users: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and what it has sampled.

    The last sampled token was not fed to the model yet. `row` holds the keys of all the others. `grammar` is its place
    in the grammar that it keeps, and `failure` says why it can keep it no longer.
    """

    request: GenerateRequest
    prefix: Prefix
    limit: int
    row: Row | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    grammar: GrammarState | None = None
    constrained: list[tuple[int, int]] = field(default_factory=list)
    alternatives: list[Likeliest] = field(default_factory=list)
    failure: ConstraintError | None = None

    @property
    def position(self) -> int:
        """The position of the last sampled token."""
        return len(self.prefix.ids) + len(self.ids) - 1

    def constrain_last(self) -> None:
        """The newest token was the only legal one."""
        place = len(self.ids) - 1
        if self.constrained and self.constrained[-1][1] == place:
            self.constrained[-1] = self.constrained[-1][0], place + 1
        else:
            self.constrained.append((place, place + 1))

    def fail(self, why: str) -> None:
        """End it: its grammar allows nothing more."""
        self.finish = FinishReason.ABORT
        self.failure = ConstraintError(
            f"the answer cannot go on within its grammar: {why}", remedy="ask for a simpler form of answer"
        )

    def generation(self) -> Generation:
        finish = self.finish or FinishReason.ABORT
        streams = tuple(self.ids), tuple(self.logprobs), tuple(self.versions)
        told = tuple(self.constrained), tuple(self.alternatives)
        return Generation(*streams, finish, None, *told)
