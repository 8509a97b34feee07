"""A session is one agent's run: its limits, its record, and whether it is still open."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from loopwright.core.seeds import derive_seed
from loopwright.core.together import own_task
from loopwright.errors import ContextError, EngineError
from loopwright.gateway.call import Wishes
from loopwright.gateway.tries import Tries
from loopwright.render.recording.model_call import answer_budget, answer_sampling
from loopwright.render.recording.recorder import Recorder
from loopwright.types import FinishReason, Sampling


class SessionState(StrEnum):
    """Whether a session takes calls."""

    OPEN = "open"
    COMPLETED = "completed"
    """Its agent is done. What it recorded is kept until the session is deleted."""
    EXPIRED = "expired"
    """Nobody used it for too long, so its agent is assumed to be dead."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The sampling settings of a session's calls.

    With `sampling`, those settings override the agent's wishes (T8), and its `max_new_tokens` is the budget of a turn.
    `max_tokens` is the budget of all turns together. `seed` is the seed of its answers. `label` is for whoever created
    the session. `affinity` is that of its requests.
    """

    sampling: Sampling | None = None
    max_tokens: int | None = None
    ttl_seconds: float = 3600.0
    seed: int = 0
    label: str = ""
    affinity: str = ""


@dataclass(frozen=True, slots=True)
class FirstCall:
    """When the agent first asked the model: the Unix time, the same moment on this process's monotonic clock, and for
    how many seconds the session had been held by then."""

    time: float
    monotonic: float
    held_seconds: float


def never_held() -> float:
    """The clock of held seconds of engines that always answer."""
    return 0.0


@dataclass(slots=True)
class Session:
    """Only `key_digest` is kept of its key. Times are Unix times.

    `held_clock` reads for how many seconds in total the engines have answered nobody, and `held_from` is its reading
    when the session was created.

    `fault` is what the engine raised last, unless it has answered since. `unfit` says that a prompt was too long. When
    the session ends, these and its turns do not change any more, and `version` is their digest. `cut_off` counts the
    calls that a crash of the gateway cut off. If it is `quiet_since_restart`, its agent has got no answer since the
    gateway was started again, and its calls may have met nobody before that. `noted_turns` and `noted_held` are how
    many turns and held seconds it had when its facts were last stored. `outcome` is what became of it, as its run says.
    `calls` is how many samples were requested so far; each has its own seed, recorded or not. `held` is how many tokens
    the running calls may sample. Whenever one of them ends, `freed` is set.
    """

    id: str
    key_digest: str
    settings: SessionSettings
    created: float
    used: float = 0.0
    held_clock: Callable[[], float] = never_held
    held_from: float = 0.0
    first_call: FirstCall | None = None
    state: SessionState = SessionState.OPEN
    calls: int = 0
    recorder: Recorder = field(default_factory=Recorder)
    tries: Tries = field(default_factory=Tries)
    held: int = 0
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    running: set[asyncio.Task[Any]] = field(default_factory=set)
    last_finish: FinishReason | None = None
    fault: EngineError | None = None
    unfit: ContextError | None = None
    version: str | None = None
    cut_off: int = 0
    quiet_since_restart: bool = False
    noted_turns: int = 0
    noted_held: float = 0.0
    outcome: Mapping[str, Any] | None = None
    deleted: set[str] = field(default_factory=set)
    """The answers that its agent has deleted: no request can name them, and they stay recorded."""

    @property
    def held_seconds(self) -> float:
        """For how many seconds the engines have answered nobody since the session was created."""
        return self.held_clock() - self.held_from

    def note_fault(self, fault: EngineError | None) -> None:
        """Note whether the engine failed the last call, unless the session is over."""
        if self.state is SessionState.OPEN:
            self.fault = fault

    def note_unfit(self, unfit: ContextError) -> None:
        """Note that a prompt was too long, unless the session is over."""
        if self.state is SessionState.OPEN:
            self.unfit = unfit

    def last_fault(self, recorder: Recorder) -> EngineError | ContextError | None:
        """What kept the model from answering the last call, or the error that no prompt ever fitted. `recorder` has the
        session's turns, also after its end."""
        return self.fault or (None if len(recorder) else self.unfit)

    def stop_held_clock(self) -> None:
        """Keep the held seconds as they are: nobody waits for a session that is over."""
        self.held_clock, self.held_from = never_held, -self.held_seconds

    def call_arrives(self) -> bool:
        """Note the time of the first call. Returns whether this call is the first."""
        if self.first_call is not None:
            return False
        self.first_call = FirstCall(time.time(), time.monotonic(), self.held_seconds)
        return True

    @property
    def is_idle(self) -> bool:
        """Whether it expires: no call is running, and none was made for too long."""
        return not self.running and time.time() - self.used > self.settings.ttl_seconds

    @property
    def tokens_left(self) -> int | None:
        """What is left of the budget of all turns, without what running calls may sample. None if there is no
        budget."""
        most = self.settings.max_tokens
        return None if most is None else max(0, most - self.recorder.sampled_tokens - self.held)

    async def has_tokens(self) -> None:
        """Wait while running calls may sample everything that is left. It ends when they return tokens, or when the
        budget is used up."""
        while self.held and self.tokens_left == 0:
            self.freed.clear()
            await self.freed.wait()

    @contextmanager
    def holding(self, tokens: int) -> Iterator[None]:
        """Inside this block, the tokens that a call may sample are not available to others."""
        self.held += tokens
        try:
            yield
        finally:
            self.held -= tokens
            self.freed.set()

    def samplings(self, wishes: Wishes, room: int, ends: tuple[int, ...], samples: int) -> list[Sampling]:
        """The settings of each sample of the next call, within the room in its context (S5). The rest of the budget is
        divided among them. `ends` are the tokens with which the model ends a turn."""
        own, left = self.settings.sampling, self.tokens_left
        most = answer_budget(room, wishes.max_tokens, own.max_new_tokens if own else None)
        budgets = [most if left is None else min(most, (left + n) // samples) for n in reversed(range(samples))]
        return [self._sampling(wishes, ends, sample, budget) for sample, budget in enumerate(budgets)]

    def _sampling(self, wishes: Wishes, ends: tuple[int, ...], sample: int, budget: int) -> Sampling:
        number, self.calls = self.calls, self.calls + 1
        own, seed = self.settings.sampling, derive_seed(self.settings.seed, number)
        if own is not None:
            return answer_sampling(own, ends, budget, seed, wishes.stop)
        if wishes.seed is not None:
            seed = derive_seed(wishes.seed, sample) if sample else derive_seed(wishes.seed)
        return Sampling(
            temperature=1.0 if wishes.temperature is None else wishes.temperature,
            max_new_tokens=budget,
            # top_p 0 means only the likeliest token.
            top_k=1 if wishes.top_p == 0 else max(0, wishes.top_k or 0),
            top_p=wishes.top_p or 1.0,
            stop_token_ids=ends,
            stop=wishes.stop,
            seed=seed,
        )

    @contextmanager
    def use(self) -> Iterator[asyncio.Task[Any]]:
        """Inside this block a call is running: the session does not expire, and completing the session ends the
        call."""
        task = own_task()
        self.running.add(task)
        try:
            yield task
        finally:
            self.running.discard(task)
            self.used = time.time()


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
