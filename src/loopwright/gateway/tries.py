"""Finds out which earlier call a request retries.

The invariant: an answer reaches one call, and every retry of that call. An idempotency key names a call. Without a key,
a client only says how often it has tried; many clients may ask the same question. So a retry gets a recorded answer
only if nobody else can be waiting for it: the client of that answer has left, or only one call ever asked this
question. A retry after a failed try gets a new sample, because there is no answer for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType

from loopwright.render.recording.matching import History


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for an answer. `id` is the id that the answer will have, `tries` is how often its client has tried
    before, and `key` is the idempotency key."""

    id: str = field(default_factory=lambda: secrets.token_hex(12))
    tries: int = 0
    key: str | None = None


@dataclass(slots=True)
class Tries:
    """The tries of one session's questions. `flights` are the running questions. `calls` are the first answers by
    idempotency key, and `keyed` are all answers that have a key. `owed` counts the new samples that retries after a
    failed try get."""

    flights: dict[bytes, list[Flight]] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    on_their_way: dict[str, str] = field(default_factory=dict)
    """The answers that a request waits for, by answer id, with the id of the request."""
    keyed: set[str] = field(default_factory=set)
    _seen: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    owed: Counter[tuple[bytes, int]] = field(default_factory=Counter)

    def first(self, ask: Ask) -> str | None:
        """The answer of the call that the key names, if there was one."""
        return None if ask.key is None else self.calls.get(ask.key)

    def begin(self, history: History, ask: Ask) -> bool:
        """Record a try. Returns whether it may repeat another one; then `settled` must be called."""
        place = (history.question, ask.tries)
        self._seen[place] = self._seen.get(place, 0) + 1
        return ask.tries > 0 or (ask.key is not None and ask.key in self.calls)

    async def settled(self, history: History, ask: Ask) -> bool:
        """Wait for the tries that this one may repeat. False means that it gets a new sample."""
        place = (history.question, ask.tries)
        if self._is_owed(place, ask):
            return False
        # An earlier try may still be running: the client may only have stopped waiting.
        for flight in tuple(self.flights.get(place[0], ())):
            await flight.landed()
        return not self._is_owed(place, ask)

    def _is_owed(self, place: tuple[bytes, int], ask: Ask) -> bool:
        if ask.key is not None or not self.owed[place]:
            return False
        self.owed[place] -= 1
        return True

    def is_lost(self, answer: str) -> bool:
        """Whether nobody waits for an undelivered answer any more. An answer with a key still belongs to its client."""
        return answer not in self.on_their_way and answer not in self.keyed

    def is_only(self, history: History, ask: Ask) -> bool:
        """Whether this can only be the one call that asked the question."""
        question = history.question
        return bool(ask.tries) and self._seen[question, 0] == self._seen[question, ask.tries] == 1

    def flight(self, history: History, ask: Ask) -> Flight:
        """Inside this block a question is running, and a retry of it can wait for its end. If it fails, the next try
        gets a new sample."""
        return Flight(self, history.question, ask)

    def delivering(self, ask: Ask) -> Delivery:
        """Inside this block a client waits for the answer, so the same question from elsewhere is another question."""
        return Delivery(self.on_their_way, ask)

    def claim(self, answer: str, ask: Ask) -> None:
        """Reserve a recorded answer for this request, if the request can be told apart from others."""
        if ask.id in self.on_their_way:
            self.on_their_way[answer] = ask.id


class Flight:
    """A running question, used as `with`. It is a class, not a generator, because every call needs one."""

    def __init__(self, tries: Tries, question: bytes, ask: Ask) -> None:
        self._tries = tries
        self._question = question
        self._ask = ask
        self._landed: asyncio.Event | None = None

    async def landed(self) -> None:
        """Wait for its end."""
        self._landed = self._landed or asyncio.Event()
        await self._landed.wait()

    def __enter__(self) -> None:
        tries, ask = self._tries, self._ask
        tries.flights.setdefault(self._question, []).append(self)
        if ask.key is not None:
            tries.calls[ask.key] = ask.id
            tries.keyed.add(ask.id)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tries, question = self._tries, self._question
        if error is not None and self._ask.key is None:
            tries.owed[question, self._ask.tries + 1] += 1
        if self._landed is not None:
            self._landed.set()
        under_way = tries.flights[question]
        under_way.remove(self)
        if not under_way:
            del tries.flights[question]


class Delivery:
    """An answer that is being sent to its client, used as `with`."""

    def __init__(self, on_their_way: dict[str, str], ask: Ask) -> None:
        self._on_their_way = on_their_way
        self._id = ask.id

    def __enter__(self) -> None:
        self._on_their_way[self._id] = self._id

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._on_their_way[self._id]
        if self._on_their_way:
            for answer in [answer for answer, by in self._on_their_way.items() if by == self._id]:
                del self._on_their_way[answer]
