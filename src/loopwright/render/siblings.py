"""What the siblings of a group are asked is the same: it is rendered once.

The invariant: what is remembered was rendered from exactly these messages and tools, and would be again. Whatever JSON
might spell like something else is rendered each time, and so is everything where a rendering depends on the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

import orjson

from loopwright.types import Message, Tool

LATEST = 32
"""So many conversations are remembered. Siblings come close behind one another."""

LONGEST_KEY = 1 << 14
"""In bytes. A longer conversation is remembered by its digest, which takes less memory."""

_PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_AMBIGUOUS = b"null"
"""None, and every number that is not finite."""

Render = Callable[[Sequence[Message], Sequence[Tool], int | None], tuple[int, ...]]
"""With the most ids that are wanted: what is given does not depend on it, only whether something is."""


class RenderedOnce:
    """`render`, with a memory for the latest conversations. Several threads may call it."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._known: dict[bytes, tuple[int, ...]] = {}

    def __call__(self, messages: Sequence[Message], tools: Sequence[Tool], most: int | None = None) -> tuple[int, ...]:
        try:
            spelled = orjson.dumps((tuple(messages), tuple(tools)), option=_PLAIN)
        except orjson.JSONEncodeError:
            return self._render(messages, tools, most)
        if _AMBIGUOUS in spelled:
            return self._render(messages, tools, most)
        key = spelled if len(spelled) <= LONGEST_KEY else blake2b(spelled, digest_size=16).digest()
        ids = self._known.get(key)
        if ids is None:
            ids = self._render(messages, tools, most)
            if len(self._known) >= LATEST:
                self._known.clear()
            self._known[key] = ids
        return ids
