"""The port for agents that are separate programs: they talk to a URL and know nothing of Loopwright."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from loopwright.ports.agent_loop import Policy
from loopwright.types import Message, RolloutRequest


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an agent finds the model. `base_url` is for OpenAI's clients and ends in `/v1`; `anthropic_url` is for
    Anthropic's. Each serves both, and the key opens these URLs only. `model` is the name that the server gives to the
    model; it accepts every other name too."""

    base_url: str
    api_key: str
    anthropic_url: str
    model: str


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """How long an agent has worked, in seconds in which the engines answered. `total` counts from the start of the
    rollout, `since_first_call` from the first model call; it is None before that call."""

    total: float
    since_first_call: float | None


@runtime_checkable
class ServedPolicy(Policy, Protocol):
    """A policy that can be reached over HTTP. Calls over HTTP are recorded just like calls of `reply`."""

    @property
    def transcript(self) -> Sequence[Message]:
        """The latest conversation, with the model's reply."""
        ...

    @property
    def request(self) -> RolloutRequest:
        """What the rollout was asked for. A loop that runs a program ends the program when its `seconds` are over."""
        ...

    def times(self) -> SessionTimes:
        """How long the agent has worked so far, also while a model call is out."""
        ...

    def watch_time(self, look: Callable[[], None] | None) -> None:
        """Call `look` whenever the times have jumped. None: nobody watches any more."""
        ...

    def endpoint(self, *, max_tokens: int | None = None) -> AbstractAsyncContextManager[Endpoint]:
        """Open the endpoint, once, while the agent runs. All turns together may sample `max_tokens`."""
        ...
