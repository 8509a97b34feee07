"""A rollout's policy that is a session of a gateway: the agent uses HTTP, and its tokens are recorded here."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from loopwright.core.in_flight import session_name
from loopwright.core.timeouts import ClockTimeout
from loopwright.errors import OutOfTimeError, RunError
from loopwright.gateway.call import Call, Wishes
from loopwright.gateway.exchange import Exchange
from loopwright.gateway.management import base_urls
from loopwright.gateway.record import latest_conversation, stop_after
from loopwright.gateway.session import Session, SessionSettings
from loopwright.gateway.sessions import Sessions
from loopwright.gateway.tries import Ask
from loopwright.ports import Endpoint, Reply, SessionTimes
from loopwright.render.recording.describing import describe_chains
from loopwright.render.recording.recorder import Recorder
from loopwright.render.recording.session_drift import session_drift
from loopwright.types import (
    Episode,
    EpisodeDrift,
    Message,
    RecordedChain,
    Rollout,
    RolloutKey,
    RolloutRequest,
    Split,
    StopReason,
    Tool,
)

LONGEST_PAUSE_SECONDS = 24 * 3600.0
"""How long an agent may wait between two calls. The code that runs the agent has its own deadline."""


@dataclass(frozen=True, slots=True)
class SessionPolicies:
    """A `PolicyMaker` over a gateway in this process. `model` is the name that agents see."""

    sessions: Sessions
    exchange: Exchange
    base_url: str
    model: str

    def policy(self, request: RolloutRequest, *, resumable: bool) -> SessionPolicy:
        return SessionPolicy(self, request)

    def first_attempt(self, split: Split, key: RolloutKey) -> int:
        return key.attempt

    def completed(self, request: RolloutRequest) -> None:
        """What an earlier process has recorded ended with it."""

    def stored(self, split: Split, key: RolloutKey) -> None:
        """A session of this process has handed over its record when it ended."""

    def standing(self) -> dict[str, Any]:
        return {**self.sessions.standing(), "heard": None, "restarts": 0, "lost": None}


class SessionPolicy:
    """A `ServedPolicy` for one rollout; it is used once. The record is kept after the session has ended."""

    def __init__(self, gateway: SessionPolicies, request: RolloutRequest) -> None:
        self._sessions = gateway.sessions
        self._exchange = gateway.exchange
        self._base_url = gateway.base_url
        self._model = gateway.model
        self._request = request
        self._held = gateway.sessions.held
        self._now = asyncio.get_running_loop().time
        self._start = self._now() - self._held()
        self._session: Session | None = None
        self._recorder = Recorder()
        self._stop: StopReason | None = None

    @asynccontextmanager
    async def endpoint(self, *, max_tokens: int | None = None) -> AsyncIterator[Endpoint]:
        sampling = self._request.sampling
        settings = SessionSettings(
            replace(sampling, seed=0),
            max_tokens,
            ttl_seconds=LONGEST_PAUSE_SECONDS,
            seed=sampling.seed,
            affinity=self._request.group,
        )
        name = session_name(self._request.split, self._request.key, secrets.token_hex(4))
        session, key = self._sessions.create(name, settings)
        self._session, self._recorder = session, session.recorder
        try:
            urls = base_urls(self._base_url, session.id)
            yield Endpoint(urls["openai"], key, urls["anthropic"], self._model)
        finally:
            self._sessions.end(session)

    async def reply(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        max_new_tokens: int | None = None,
        seconds: float | None = None,
    ) -> Reply:
        """Ask within the same session, without HTTP."""
        if self._session is None:
            raise RunError("the session is not open", remedy="ask inside `async with policy.endpoint()`")
        call = Call(tuple(messages), tuple(tools), Wishes(max_tokens=max_new_tokens))
        limit = ClockTimeout(math.inf if seconds is None else seconds, self.own_seconds)
        try:
            async with limit:
                (answer,) = await self._exchange.answer(self._session, call, Ask(), None)
        except TimeoutError:
            if not limit.expired():
                raise
            raise OutOfTimeError(
                f"the model did not answer within {seconds:g} s", remedy="give the call more seconds"
            ) from None
        self._exchange.delivered(self._session, [answer])
        said = answer.parsed
        return Reply(said.content, answer.finish, said.reasoning, said.tool_calls, answer.completion_tokens)

    def own_seconds(self) -> float:
        return self._now() - self._held() - self._start

    @property
    def request(self) -> RolloutRequest:
        return self._request

    def times(self) -> SessionTimes:
        session = self._session
        first = session.first_call if session is not None else None
        if session is None or first is None:
            return SessionTimes(self.own_seconds(), None)
        since = time.monotonic() - first.monotonic - (session.held_seconds - first.held_seconds)
        return SessionTimes(self.own_seconds(), since)

    def watch_time(self, look: Callable[[], None] | None) -> None:
        """The clock of a session does not jump."""

    def out_of_budget(self) -> None:
        self._stop = StopReason.BUDGET

    @property
    def was_answered(self) -> bool:
        return len(self._recorder) > 0

    @property
    def transcript(self) -> tuple[Message, ...]:
        """The conversation of the latest turn."""
        return latest_conversation(self._recorder)

    @property
    def fault(self) -> Exception | None:
        """What kept the model from answering the last call, or the error that no prompt ever fitted."""
        if self._session is None:
            return None
        return self._session.last_fault(self._recorder)

    def episode(self, messages: Sequence[Message], stop: StopReason | None = None) -> Episode:
        stop = stop or self._stop or stop_after(self._session.last_finish if self._session else None)
        return Episode(tuple(messages), self._recorder.chains(), stop, self._recorder.tools)

    @property
    def recorded(self) -> tuple[RecordedChain, ...]:
        return describe_chains(self._recorder)

    async def drift(self) -> EpisodeDrift:
        """Measured in a thread, because it renders every conversation again."""
        return await asyncio.to_thread(session_drift, self._recorder, self._exchange.offer.current().renderer)

    async def keep(self, rollout: Rollout) -> None:
        """The record ends with this process."""
