"""The siblings of a group get the same prompt, so it is rendered once.

The invariant: a cached result was rendered from exactly these messages and tools, and rendering again would give the
same. Values that JSON could write like other values are rendered each time. So is everything if the rendering depends
on the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

import orjson

from loopwright.types import Message, Tool

LATEST = 32
"""How many conversations are cached. Siblings come shortly after one another."""

LONGEST_KEY = 1 << 14
"""In bytes. A longer conversation is remembered by its digest, which takes less memory."""

_PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_AMBIGUOUS = b"null"
"""JSON writes None like this, and also every number that is not finite."""

Render = Callable[[Sequence[Message], Sequence[Tool], int | None], tuple[int, ...]]
"""A rendering function. Its last argument is the largest number of ids that is wanted: it may make the function refuse,
but does not change the result."""


class RenderedOnce:
    """`render` with a cache for the latest conversations. Several threads may call it."""

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
