"""The port for agents that are separate programs: they talk to a URL and know nothing of Loopwright."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from loopwright.ports.agent_loop import Policy
from loopwright.types import Message


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an agent finds the model. The URL serves OpenAI's and Anthropic's clients; the key opens this URL only."""

    base_url: str
    api_key: str


@runtime_checkable
class ServedPolicy(Policy, Protocol):
    """A policy that can be reached over HTTP. Calls over HTTP are recorded just like calls of `reply`."""

    @property
    def transcript(self) -> Sequence[Message]:
        """The latest conversation, with the model's reply."""
        ...

    def endpoint(self, *, max_tokens: int | None = None) -> AbstractAsyncContextManager[Endpoint]:
        """Open the endpoint, once, while the agent runs. All turns together may sample `max_tokens`."""
        ...
