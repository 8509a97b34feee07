"""The seam for agents that are programs of their own: they talk to a URL, and know nothing of us."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from loopwright.ports.agent_loop import Policy
from loopwright.types import Message


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an agent finds the model. The URL serves OpenAI's clients and Anthropic's; the key opens it alone."""

    base_url: str
    api_key: str


@runtime_checkable
class ServedPolicy(Policy, Protocol):
    """A policy that can be reached over HTTP. Whatever is asked there is recorded like what `reply` is asked."""

    @property
    def transcript(self) -> Sequence[Message]:
        """The latest conversation, with the model's reply."""
        ...

    def endpoint(self, *, max_tokens: int | None = None) -> AbstractAsyncContextManager[Endpoint]:
        """Open it, once, for as long as the agent runs. All its turns together may have `max_tokens`."""
        ...
