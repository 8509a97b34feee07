"""What the siblings of a group are asked is the same: it is rendered once.

The invariant: what is remembered was rendered from exactly these messages and tools. Whatever cannot be spelled as JSON
for certain is rendered each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

import orjson

from loopwright.types import Message, Tool

LATEST = 32
"""So many conversations are remembered. Siblings come close behind one another."""

_EXACT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
"""Only what JSON has: two values that are not the same are never spelled the same."""

Render = Callable[[Sequence[Message], Sequence[Tool]], tuple[int, ...]]


class RenderedOnce:
    """`render`, with a memory for the latest conversations. Several threads may call it."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._known: dict[bytes, tuple[int, ...]] = {}

    def __call__(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        try:
            spelled = orjson.dumps((tuple(messages), tuple(tools)), option=_EXACT)
        except orjson.JSONEncodeError:
            return self._render(messages, tools)
        key = blake2b(spelled, digest_size=16).digest()
        ids = self._known.get(key)
        if ids is None:
            ids = self._render(messages, tools)
            if len(self._known) >= LATEST:
                self._known.clear()
            self._known[key] = ids
        return ids
