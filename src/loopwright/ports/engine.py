"""Token-in, token-out generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from loopwright.types import IN_PLACE, GenerateRequest, Generation, PauseMode, ProbeAnswer, WeightUpdate

OnPart = Callable[[Generation], object]
"""Receives tokens while they are sampled, each once and in order. Each part is a generation with `finish = abort`."""


class ModelClient(Protocol):
    """All that an agent's policy needs of the engines, wherever they are."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample until a stop condition. Cancelling the call frees what the request held.

        Raises OutOfTimeError when `request.seconds` are spent, and tells in `held` how long the call was held.
        """
        ...


class Engine(Protocol):
    """An engine samples tokens and stamps each with the version of the weights that sampled it (T4)."""

    @property
    def version(self) -> int:
        """The version of the weights that the next token is sampled with."""
        ...

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample until a stop condition. Cancelling the call frees what the request held."""
        ...

    async def abort(self, request_id: str) -> None:
        """End a request early: its `generate` returns the tokens sampled so far. Unknown ids are ignored."""
        ...

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        """Stop sampling, and return when no token is sampled any more."""
        ...

    async def resume(self) -> None: ...

    async def load(self, version: int, update: WeightUpdate = IN_PLACE) -> None:
        """Switch to new weights at a token boundary.

        If they do not fit the model, the engine keeps its present weights. Live sequences continue; their cached keys
        and values are recomputed, so every later logprob is exact for the stamped version.
        """
        ...

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        """Score the request's prompt, and sample after it as for every request. It is answered while the engine is
        paused, and live sequences stand still meanwhile."""
        ...


class StreamingEngine(Engine, Protocol):
    """An engine that streams tokens as it samples them, so that they survive if it dies."""

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        """Return what `Engine.generate` returns: all tokens, including those that `on_part` has seen."""
        ...


class Lockstep(Protocol):
    """An engine that can wait for all of its callers. Its batches are then the same in every run, and so are the last
    bits of its logprobs."""

    def expect(self, callers: int) -> None:
        """Step only while at least `callers` requests are here; admit them ordered by id. 0 switches it off."""
        ...
