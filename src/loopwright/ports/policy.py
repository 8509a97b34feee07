"""The model as one rollout sees it, with a record of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from loopwright.ports.agent_loop import Policy
from loopwright.types import (
    Episode,
    EpisodeDrift,
    Message,
    RecordedChain,
    Rollout,
    RolloutKey,
    RolloutRequest,
    Split,
    StopReason,
)


class RecordingPolicy(Policy, Protocol):
    """A policy for one rollout that can report afterwards what happened."""

    @property
    def was_answered(self) -> bool:
        """Whether the model has answered at all."""
        ...

    @property
    def transcript(self) -> Sequence[Message]:
        """The latest conversation, with the model's reply."""
        ...

    @property
    def fault(self) -> Exception | None:
        """What kept the model from answering, even if the agent has caught or replaced the exception."""
        ...

    def episode(self, messages: Sequence[Message], stop: StopReason | None = None) -> Episode: ...

    @property
    def recorded(self) -> Sequence[RecordedChain]:
        """A description of each of the episode's chains, in their order."""
        ...

    def watch_time(self, look: Callable[[], None] | None) -> None:
        """Call `look` whenever `own_seconds` has jumped. Whoever limits the agent's time may have to cancel it.
        None: nobody watches any more."""
        ...

    async def drift(self) -> EpisodeDrift | None:
        """Which tokens would be wrong if the episode's text were tokenised again. None if this is not measured."""
        ...

    async def keep(self, rollout: Rollout) -> None:
        """This is the rollout that was made. If the record outlives this process, the rollout is kept with it until it
        is stored."""
        ...


class PolicyMaker(Protocol):
    """Makes the policy of one rollout."""

    def policy(self, request: RolloutRequest, *, resumable: bool) -> RecordingPolicy:
        """With `resumable`, a paused engine interrupts the rollout, and `request.resume_from` is continued."""
        ...

    def first_attempt(self, split: Split, key: RolloutKey) -> int:
        """The attempt to begin with: that of `key`, or a later one if an earlier process of the run had begun that."""
        ...

    def completed(self, request: RolloutRequest) -> Rollout | None:
        """The rollout, if an earlier process of the run has completed this attempt and could not store it."""
        ...

    def stored(self, split: Split, key: RolloutKey) -> None:
        """The rollout is stored, so its record is not needed any more."""
        ...


class ChainChoice(Protocol):
    """Decides which chains of a rollout are trained (T6)."""

    async def choose(self, chains: Sequence[RecordedChain]) -> frozenset[int]:
        """The numbers of the chains to train. Raises FilterError when that cannot be decided."""
        ...
