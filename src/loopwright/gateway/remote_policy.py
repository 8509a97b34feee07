"""A rollout's policy that is a session of a gateway in another process.

The gateway counts and records; this side asks it. One request a second serves all sessions of the run: it renews the
lease, registers again with a gateway that was started again, and tells how long each session was held. Between two
answers the clock of a rollout stands still. So an agent is not charged for a gateway that is away, and its time ends up
to two seconds late.

A session is deleted when its rollout is stored, at the version that was read. Until then the gateway also keeps the
outcome of the rollout, so that a killed run does not lose it (`takeover.py`). What is left at the run's end is deleted.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import orjson

from loopwright.core.redaction import Redactor, without_secrets
from loopwright.errors import EngineLostError, LeaseError, LoopwrightError, RunError
from loopwright.gateway.client import GatewayAddress, GatewayClient
from loopwright.gateway.management import base_urls
from loopwright.gateway.offer import name_of
from loopwright.gateway.outcome import drift_from_json, outcome_to_json
from loopwright.gateway.policy import LONGEST_PAUSE_SECONDS
from loopwright.gateway.record import SessionRecord, record_from_json, stop_after
from loopwright.gateway.registration import Registration
from loopwright.gateway.takeover import NOTHING, EarlierSessions, Unfinished, label_of, take_over
from loopwright.ports import Endpoint, Reply, SessionTimes
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

log = logging.getLogger("loopwright")

BEAT_SECONDS = 1.0
LONGEST_STEP_SECONDS = 2.0
"""A rollout's clock advances by this at most between two answers of the gateway. A longer silence is not charged."""
FAREWELL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class HeardTimes:
    """What the gateway has told of an open session: for how many seconds it was held, and the agent's own seconds since
    its first call, which is None before that call."""

    held_seconds: float = 0.0
    since_first_call: float | None = None


class RemoteSessionPolicies:
    """A `PolicyMaker` over a gateway in another process. `open_remote_policies` makes it."""

    def __init__(
        self, client: GatewayClient, beat_seconds: float = BEAT_SECONDS, redact: Redactor | None = None
    ) -> None:
        self.client = client
        self.redact = redact or Redactor()
        self.earlier = EarlierSessions()
        self._beat_seconds = beat_seconds
        self._now = asyncio.get_running_loop().time
        self._heard_at = self._now()
        self._heard: Mapping[str, HeardTimes] = {}
        self._unstored: dict[tuple[Split, RolloutKey], list[tuple[str, str]]] = {}
        self._stored: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.clock = 0.0
        """The seconds in which the gateway has answered, up to its latest answer."""
        self.model = name_of(client.registration.model.source)
        self.base_url = client.url
        """Where agents reach the gateway."""
        self.lost: LoopwrightError | None = None
        """Why the gateway cannot be used any more: another run has taken it."""

    def policy(self, request: RolloutRequest, *, resumable: bool) -> RemoteSessionPolicy:
        return RemoteSessionPolicy(self, request)

    def first_attempt(self, split: Split, key: RolloutKey) -> int:
        return key.attempt if split is Split.EVAL else self.earlier.first_attempt(key)

    def completed(self, request: RolloutRequest) -> Rollout | None:
        kept = None if request.split is Split.EVAL else self.earlier.pop(request.key)
        if kept is None:
            return None
        self.read(request, kept.id, kept.version)
        return kept.outcome.rollout(request)

    def stored(self, split: Split, key: RolloutKey) -> None:
        for session in self._unstored.pop((split, key), ()):
            self._stored.put_nowait(session)

    def read(self, request: RolloutRequest, session_id: str, version: str) -> None:
        """The record of a session was read at this version. It is kept until the rollout is stored."""
        self._unstored.setdefault((request.split, request.key), []).append((session_id, version))

    def times(self, session_id: str) -> HeardTimes:
        return self._heard.get(session_id, HeardTimes())

    def clock_now(self) -> float:
        """The clock, if the gateway has just answered."""
        return self.clock + min(self._now() - self._heard_at, LONGEST_STEP_SECONDS)

    async def beat(self) -> None:
        """Renew the lease, and take what the gateway tells."""
        said = await self.client.register()
        self.clock, self._heard_at = self.clock_now(), self._now()
        self.base_url = said.get("advertise_url") or self.client.url
        self._heard = {id: heard_times(times, said["now"]) for id, times in said["sessions"].items()}

    async def keep_beating(self) -> None:
        """Beat until another run has the gateway."""
        while True:
            await asyncio.sleep(self._beat_seconds)
            try:
                await self.beat()
            except LeaseError as taken:
                self.lost = taken
                return
            except LoopwrightError as error:
                log.warning("the gateway at %s does not serve the run: %s", self.client.url, error.message)

    async def keep_deleting(self) -> None:
        """Delete the sessions whose rollouts are stored."""
        while True:
            session_id, version = await self._stored.get()
            # What cannot be deleted now is deleted at the end of the run.
            with suppress(LoopwrightError):
                await self.client.ask("DELETE", f"/sessions/{session_id}?version={version}")


@asynccontextmanager
async def open_remote_policies(
    address: GatewayAddress,
    registration: Registration,
    unfinished: Unfinished = NOTHING,
    *,
    redact: Redactor | None = None,
    beat_seconds: float = BEAT_SECONDS,
) -> AsyncIterator[RemoteSessionPolicies]:
    """Register the run with a gateway, and give policies that are sessions there. What an earlier process of the run
    has completed for its `unfinished` groups is taken over. Raises LeaseError if another run holds the gateway, and
    EngineLostError if it does not answer in time."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as http:
        client = GatewayClient(http, address, registration)
        policies = RemoteSessionPolicies(client, beat_seconds, redact)
        await policies.beat()
        policies.earlier = await take_over(client, unfinished)
        tasks = [asyncio.create_task(policies.keep_beating()), asyncio.create_task(policies.keep_deleting())]
        try:
            yield policies
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(LoopwrightError, TimeoutError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await client.leave()


@dataclass(slots=True)
class _OpenSession:
    """A session, and where the rollout's clocks stood when it was opened."""

    id: str
    own_seconds: float
    clock: float
    own_seconds_at_first_call: float | None = None
    record: SessionRecord | None = None
    version: str = ""
    drift: EpisodeDrift | None = None
    ended: tuple[float, SessionTimes] | None = None
    """When it ended, and the rollout's times by then."""


class RemoteSessionPolicy:
    """A `ServedPolicy` for one rollout; it is used once."""

    def __init__(self, gateway: RemoteSessionPolicies, request: RolloutRequest) -> None:
        self._gateway = gateway
        self._client = gateway.client
        self._request = request
        self._now = asyncio.get_running_loop().time
        self._start = self._now()
        self._session: _OpenSession | None = None
        self._lost: LoopwrightError | None = None
        self._stop: StopReason | None = None

    @asynccontextmanager
    async def endpoint(self, *, max_tokens: int | None = None) -> AsyncIterator[Endpoint]:
        try:
            said = await self._opened(max_tokens)
        except LoopwrightError as error:
            self._lost = error
            raise
        own_seconds = self._now() - self._start
        session = self._session = _OpenSession(str(said["id"]), own_seconds, self._gateway.clock_now())
        try:
            urls = base_urls(self._gateway.base_url, session.id)
            yield Endpoint(urls["openai"], str(said["key"]), urls["anthropic"], self._gateway.model)
        finally:
            session.ended = self._now(), self.times()
            try:
                await self._read(session)
            except LoopwrightError as error:
                # Not raised: it would replace what the agent raised, or its cancellation. The worker sees it as fault.
                self._lost = error

    async def reply(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        max_new_tokens: int | None = None,
        seconds: float | None = None,
    ) -> Reply:
        raise RunError(
            "a session of a gateway elsewhere is asked over HTTP only",
            remedy="ask at the endpoint's URL, or remove gateway.url",
        )

    def own_seconds(self) -> float:
        return self.times().total

    @property
    def request(self) -> RolloutRequest:
        return self._request

    def times(self) -> SessionTimes:
        session = self._session
        if session is None:
            return SessionTimes(self._now() - self._start, None)
        if session.ended is not None:
            at, times = session.ended
            return SessionTimes(times.total + self._now() - at, times.since_first_call)
        return _counted(session, self._gateway.times(session.id), self._gateway.clock)

    def watch_time(self, look: Callable[[], None] | None) -> None:
        """The clock of a session does not jump."""

    def out_of_budget(self) -> None:
        self._stop = StopReason.BUDGET

    @property
    def was_answered(self) -> bool:
        return bool(self._record and self._record.chains)

    @property
    def transcript(self) -> tuple[Message, ...]:
        """The conversation of the latest turn. It is known when the session has ended."""
        return self._record.transcript if self._record else ()

    @property
    def fault(self) -> Exception | None:
        return self._lost or (self._record.fault if self._record else None)

    def episode(self, messages: Sequence[Message], stop: StopReason | None = None) -> Episode:
        if self._record is None:
            return Episode(tuple(messages), (), stop or self._stop or stop_after(None))
        return self._record.episode(messages, stop or self._stop)

    @property
    def recorded(self) -> tuple[RecordedChain, ...]:
        return self._record.described if self._record else ()

    async def drift(self) -> EpisodeDrift | None:
        return self._session.drift if self._session else None

    async def keep(self, rollout: Rollout) -> None:
        session, record = self._session, self._record
        if session is None or record is None or self._request.split is Split.EVAL:
            return
        outcome = outcome_to_json(without_secrets(rollout, self._gateway.redact), record.transcript)
        if outcome is not None:
            # Only a run that is killed before the rollout is stored needs it: without it, the rollout is made again. So
            # is one with messages of its agent's own that JSON cannot hold.
            with suppress(LoopwrightError, orjson.JSONEncodeError):
                await self._client.tell("PUT", f"/sessions/{session.id}/outcome?version={session.version}", outcome)

    @property
    def _record(self) -> SessionRecord | None:
        return self._session.record if self._session else None

    async def _opened(self, max_tokens: int | None) -> Mapping[str, Any]:
        if self._gateway.lost is not None:
            raise self._gateway.lost
        sampling = self._request.sampling
        body = {
            "sampling": {
                "temperature": sampling.temperature,
                "max_new_tokens": sampling.max_new_tokens,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "stop": sampling.stop,
            },
            "max_tokens": max_tokens,
            "ttl_seconds": LONGEST_PAUSE_SECONDS,
            "seed": sampling.seed,
            "label": label_of(self._request.split, self._request.key),
        }
        # Every try has an id of its own: the answer to the try before may have been lost.
        return await self._client.ask("POST", lambda: f"/sessions/{self._new_id()}", body)

    def _new_id(self) -> str:
        key = self._request.key
        trial = f"{self._request.split[0]}{key.draw}-{key.member}-{key.attempt}-{secrets.token_hex(4)}"
        return f"{self._client.registration.prefix}{trial}"

    async def _read(self, session: _OpenSession) -> None:
        """Complete the session, and read what it has recorded."""
        if self._gateway.lost is not None:
            raise self._gateway.lost
        ended = await self._client.ask("POST", f"/sessions/{session.id}/complete")
        session.ended = self._now(), _counted(session, heard_times(ended, ended["now"]), self._gateway.clock_now())
        session.drift, version = _drift(ended["drift"]), str(ended["version"])
        session.version = version
        try:
            said = await self._client.ask("GET", f"/sessions/{session.id}/record?version={version}")
        except LeaseError as error:  # its record is at another version, which the gateway answers in the same way
            raise EngineLostError(error.message, remedy=error.remedy) from error
        session.record = record_from_json(said)
        self._gateway.read(self._request, session.id, version)
        if ended["quiet_since_restart"]:
            raise EngineLostError(
                "the gateway was started again, and the agent has got no answer since",
                remedy="nothing to do: the rollout is made again",
            )


def heard_times(said: Mapping[str, Any], now: float) -> HeardTimes:
    """The gateway's own clock, `now`, tells how long ago the first call was."""
    held, first = said["held_seconds"], said["first_call"]
    if first is None:
        return HeardTimes(held)
    return HeardTimes(held, max(0.0, now - first - (held - said["held_before_first_call"])))


def _counted(session: _OpenSession, heard: HeardTimes, clock: float) -> SessionTimes:
    """The rollout's times when the gateway's clock stands at `clock`."""
    total = session.own_seconds + max(0.0, clock - session.clock - heard.held_seconds)
    if session.own_seconds_at_first_call is None:
        if heard.since_first_call is None:
            return SessionTimes(total, None)
        # Read once: later the gateway's answer would also count seconds in which the gateway was away.
        session.own_seconds_at_first_call = total - heard.since_first_call
    return SessionTimes(total, max(0.0, total - session.own_seconds_at_first_call))


def _drift(said: Mapping[str, Any]) -> EpisodeDrift:
    return drift_from_json({**said, "tokens": said["recorded"]})
