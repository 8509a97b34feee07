"""A session: one agent's run. What it may use, what it has recorded, and whether it is still open."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from loopwright.core.seeds import derive_seed
from loopwright.core.together import own_task
from loopwright.errors import ContextError, EngineError
from loopwright.gateway.call import Wishes
from loopwright.render.recording.matching import History
from loopwright.render.recording.recorder import Recorder
from loopwright.types import FinishReason, Sampling


class SessionState(StrEnum):
    """Whether a session takes calls."""

    OPEN = "open"
    COMPLETED = "completed"
    """Its agent is done. What it recorded is kept until the session is deleted."""
    EXPIRED = "expired"
    """Nobody used it for too long: its agent is taken to be dead."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session's calls are sampled with.

    With `sampling`, those settings override the agent's wishes (T8), and its `max_new_tokens` is the budget of a turn.
    `max_tokens` is the budget of all turns together. `seed` is where the randomness of its answers comes from.
    """

    sampling: Sampling | None = None
    max_tokens: int | None = None
    ttl_seconds: float = 3600.0
    seed: int = 0


@dataclass(slots=True)
class Session:
    """`key_digest` is all that is kept of its key. Times are Unix times.

    `fault` is what the engine raised last, unless it has answered since; `unfit` says that a prompt was too long.
    """

    id: str
    key_digest: str
    settings: SessionSettings
    created: float
    used: float = 0.0
    state: SessionState = SessionState.OPEN
    calls: int = 0
    recorder: Recorder = field(default_factory=Recorder)
    flights: dict[bytes, asyncio.Event] = field(default_factory=dict)
    tries: dict[str | None, str] = field(default_factory=dict)
    running: set[asyncio.Task[Any]] = field(default_factory=set)
    on_their_way: set[str] = field(default_factory=set)
    last_finish: FinishReason | None = None
    fault: EngineError | None = None
    unfit: ContextError | None = None

    def opens_with(self, key: str) -> bool:
        return hmac.compare_digest(self.key_digest, digest_of(key))

    @property
    def is_idle(self) -> bool:
        """Whether its time is up: no call is under way, and none was made for too long."""
        return not self.running and time.time() - self.used > self.settings.ttl_seconds

    @property
    def tokens_left(self) -> int | None:
        """What is left of the budget of all turns; None: there is none."""
        most = self.settings.max_tokens
        return None if most is None else max(0, most - self.recorder.sampled_tokens)

    def sampling(self, wishes: Wishes, room: int, ends: tuple[int, ...]) -> Sampling:
        """The settings of the next call, within the room that its context leaves (S5). `ends` are the tokens by which
        the model ends a turn."""
        number, self.calls = self.calls, self.calls + 1
        own = self.settings.sampling
        limits = [room, wishes.max_tokens, self.tokens_left, own.max_new_tokens if own else None]
        budget = max(0, min(limit for limit in limits if limit is not None))
        seed = derive_seed(self.settings.seed, number)
        if own is not None:
            stop = tuple(dict.fromkeys((*own.stop, *wishes.stop)))
            ends = tuple(dict.fromkeys((*own.stop_token_ids, *ends)))
            return Sampling(own.temperature, budget, own.top_k, own.top_p, ends, stop, seed)
        return Sampling(
            temperature=1.0 if wishes.temperature is None else wishes.temperature,
            max_new_tokens=budget,
            # Nothing but the likeliest token is a share of 0.
            top_k=1 if wishes.top_p == 0 else max(0, wishes.top_k or 0),
            top_p=wishes.top_p or 1.0,
            stop_token_ids=ends,
            stop=wishes.stop,
            seed=seed if wishes.seed is None else derive_seed(wishes.seed),
        )

    @contextmanager
    def flight(self, history: History, key: str | None, answer: str) -> Iterator[None]:
        """While a question is under way, a second try at it can wait for its end."""
        landed = self.flights.setdefault(_question(history), asyncio.Event())
        if key is not None:
            self.tries[key] = answer
        try:
            yield
        finally:
            landed.set()
            self.flights.pop(_question(history), None)

    async def landed(self, history: History) -> None:
        """When a question like this is under way: until it has its answer, or has failed."""
        flight = self.flights.get(_question(history))
        if flight is not None:
            await flight.wait()

    @contextmanager
    def delivering(self, answer: str) -> Iterator[None]:
        """While somebody waits for an answer, it is on its way to them: the same question is another one's."""
        self.on_their_way.add(answer)
        try:
            yield
        finally:
            self.on_their_way.discard(answer)

    @contextmanager
    def use(self) -> Iterator[asyncio.Task[Any]]:
        """While a call is under way, the session does not expire, and completing it can end the call."""
        task = own_task()
        self.running.add(task)
        try:
            yield task
        finally:
            self.running.discard(task)
            self.used = time.time()


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _question(history: History) -> bytes:
    return history.digest + history.tools
