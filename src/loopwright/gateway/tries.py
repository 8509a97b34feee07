"""Which earlier call is this a second try at?

The invariant: an answer reaches one call, and every try at that call. An idempotency key names a call. Without one,
all that a client says is that this is try number so many at its question; equal questions may be asked by many. So a
try gets an answer that was recorded before only if nobody else can be waiting for it: its own client has gone, or only
one call ever asked this question. A try after one that failed has no answer to come: it is owed a sample of its own.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from loopwright.render.recording.matching import History


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for an answer: `id` is what the answer will be called, `tries` is how often its client has tried
    before, and `key` names the call."""

    id: str = field(default_factory=lambda: secrets.token_hex(12))
    tries: int = 0
    key: str | None = None


@dataclass(slots=True)
class Tries:
    """The tries at one session's questions. `flights` are the questions that are under way, with an event for the end
    of each; `calls` are the first answers by idempotency key."""

    flights: dict[bytes, list[asyncio.Event]] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    on_their_way: dict[str, str] = field(default_factory=dict)
    """Answers that somebody waits for, by id, and who: the id of their request."""
    _keyed: set[str] = field(default_factory=set)
    _seen: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    _owed: Counter[tuple[bytes, int]] = field(default_factory=Counter)

    def first(self, ask: Ask) -> str | None:
        """The answer of the call that the key names, if there was one."""
        return None if ask.key is None else self.calls.get(ask.key)

    async def begin(self, history: History, ask: Ask) -> bool:
        """Take note of a try, and wait for those that it may repeat. False: it is owed a sample of its own."""
        place = (_question(history), ask.tries)
        self._seen[place] += 1
        if not ask.tries and self.first(ask) is None:
            return True
        if self._is_owed(place, ask):
            return False
        # An earlier try may still be under way: the client has only lost its patience.
        for landed in tuple(self.flights.get(place[0], ())):
            await landed.wait()
        return not self._is_owed(place, ask)

    def _is_owed(self, place: tuple[bytes, int], ask: Ask) -> bool:
        if ask.key is not None or not self._owed[place]:
            return False
        self._owed[place] -= 1
        return True

    def is_lost(self, answer: str) -> bool:
        """Whether an answer that was not delivered is nobody's: a key still names its client, if it had one."""
        return answer not in self.on_their_way and answer not in self._keyed

    def is_only(self, history: History, ask: Ask) -> bool:
        """Whether this can only be the one call that asked the question."""
        question = _question(history)
        return bool(ask.tries) and self._seen[question, 0] == self._seen[question, ask.tries] == 1

    @contextmanager
    def flight(self, history: History, ask: Ask) -> Iterator[None]:
        """While a question is under way, a second try at it can wait for its end. If it fails, the next try is owed a
        sample."""
        question, landed = _question(history), asyncio.Event()
        under_way = self.flights.setdefault(question, [])
        under_way.append(landed)
        if ask.key is not None:
            self.calls[ask.key] = ask.id
            self._keyed.add(ask.id)
        try:
            yield
        except BaseException:
            self._owed[question, ask.tries + 1] += ask.key is None
            raise
        finally:
            landed.set()
            under_way.remove(landed)
            if not under_way:
                self.flights.pop(question, None)

    @contextmanager
    def delivering(self, ask: Ask) -> Iterator[None]:
        """While somebody waits for an answer, it is on its way to them: the same question is another one's."""
        self.on_their_way[ask.id] = ask.id
        try:
            yield
        finally:
            for answer in [answer for answer, by in self.on_their_way.items() if by == ask.id]:
                del self.on_their_way[answer]

    def claim(self, answer: str, ask: Ask) -> None:
        """An answer that was recorded before is on its way to who asks now, if they can be told from others."""
        if ask.id in self.on_their_way:
            self.on_their_way[answer] = ask.id


def _question(history: History) -> bytes:
    return history.digest + history.tools
