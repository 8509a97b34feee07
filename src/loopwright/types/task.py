"""One problem for an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, Any]
"""A chat message in OpenAI's shape: at least `role` and `content`."""


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt as chat messages, and what a judger needs to score the answer.

    Every field survives JSON, because tasks are stored beside their rollouts.
    """

    id: str
    messages: tuple[Message, ...]
    truth: Any = None
    tools: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def ask(id: str, instruction: str, truth: Any = None, **metadata: Any) -> Task:
        """A task of one user message."""
        return Task(id, ({"role": "user", "content": instruction},), truth, metadata=metadata)
