"""The engine's state of a live request."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from loopwright.engines.torch.cache import Row
from loopwright.types import FinishReason, GenerateRequest, Generation


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

    The last sampled token was not fed to the model yet. `row` holds the keys of all the others.
    """

    request: GenerateRequest
    prefix: Prefix
    limit: int
    row: Row | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: FinishReason | None = None

    @property
    def position(self) -> int:
        """The position of the last sampled token."""
        return len(self.prefix.ids) + len(self.ids) - 1

    def generation(self) -> Generation:
        finish = self.finish or FinishReason.ABORT
        return Generation(tuple(self.ids), tuple(self.logprobs), tuple(self.versions), finish)
