"""A rollout's policy that is a session of a gateway in another process.

The gateway counts and records; this side asks it. One request a second serves all sessions of the run: it renews the
lease, registers again with a gateway that was started again, and tells how long each session was held. Other processes
of the run, which run agents, only ask for these times: the lease, and the deletion of sessions, are the driver's.
Between two answers the clock of a rollout stands still. So an agent is not charged for a gateway that is away, and its
time ends up to two seconds late. If the gateway stays away, or another run has taken it, the time of all its agents is
over: they would wait for ever.

A session is deleted when its rollout is stored, at the version that was read. Until then the gateway also keeps the
outcome of the rollout, so that a killed run does not lose it (`takeover.py`). What is left at the run's end is deleted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import orjson

from loopwright.core.in_flight import session_name
from loopwright.core.redaction import Redactor, without_secrets
from loopwright.core.wakeup import WakeUp
from loopwright.errors import EngineError, EngineLostError, LeaseError, LoopwrightError, RunError
from loopwright.gateway.client import GatewayAddress, GatewayClient
from loopwright.gateway.management import base_urls
from loopwright.gateway.offer import name_of
from loopwright.gateway.outcome import drift_from_json, outcome_to_json
from loopwright.gateway.policy import LONGEST_PAUSE_SECONDS
from loopwright.gateway.record import SessionRecord, record_from_json, stop_after
from loopwright.gateway.registration import Registration
from loopwright.gateway.session import never_held
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
CANCELLED_SECONDS = 20.0
"""How long a rollout that was cancelled waits for the gateway. Its caller gives up after 30 s."""


@dataclass(frozen=True, slots=True)
class HeardTimes:
    """What the gateway has told of an open session: for how many seconds it was held, and the agent's own seconds since
    its first call, which is None before that call."""

    held_seconds: float = 0.0
    since_first_call: float | None = None


@dataclass(frozen=True, slots=True)
class UnneededSession:
    """A session that is to be deleted: by its id, at a version if that is known, or by the label of its attempt."""

    id: str = ""
    version: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class SessionsLeft:
    """What a process that runs agents leaves to the holder of the lease. `read` are the sessions of a rollout, with
    their versions: they go when it is stored."""

    read: tuple[tuple[str, str], ...] = ()
    unneeded: tuple[UnneededSession, ...] = ()


NONE_LEFT = SessionsLeft()


class RemoteSessionPolicies:
    """A `PolicyMaker` over a gateway in another process. `open_remote_policies` makes it."""

    def __init__(
        self,
        client: GatewayClient,
        beat_seconds: float = BEAT_SECONDS,
        held: Callable[[], float] = never_held,
        redact: Redactor | None = None,
        *,
        holds_lease: bool = True,
    ) -> None:
        self.client = client
        self._holds_lease = holds_lease
        self.held = held
        """Reads the clock of held seconds of the run's engines. It counts where a rollout has no session."""
        self.redact = redact or Redactor()
        self.earlier = EarlierSessions()
        self._beat_seconds = beat_seconds
        self._now = asyncio.get_running_loop().time
        self._heard_at = self._now()
        self._heard: Mapping[str, HeardTimes] = {}
        self._waiting: int | None = None
        self._heard_time: float | None = None
        self._completed = 0
        self._unstored: dict[tuple[Split, RolloutKey], list[tuple[str, str]]] = {}
        self._unneeded: asyncio.Queue[UnneededSession] = asyncio.Queue()
        self.starts = 0
        """How often the gateway was started again. What it had in memory was lost each time."""
        self.changed = WakeUp()
        """Told when the gateway was started again, and when it cannot be used any more."""
        self.clock = 0.0
        """The seconds in which the gateway has answered, up to its latest answer."""
        self.model = name_of(client.registration.model.source)
        self.base_url = client.url
        """Where agents reach the gateway."""
        self.lost: LoopwrightError | None = None
        """Why the gateway cannot be used any more: another run has taken it, or it was lost too often."""
        self._given_up_at = self._heard_at
        self.given_up: list[EngineLostError] = []
        """Why sessions were given up, each time that this happened. All sessions that were open then are over."""
        self.looks: set[Callable[[], None]] = set()
        """Called when the time of all agents is over."""

    def standing(self) -> dict[str, Any]:
        return {
            "open": len(self._heard),
            "waiting": self._waiting,
            "completed": self._completed,
            "heard": self._heard_time,
            "restarts": self.starts,
            "lost": None if self.lost is None else self.lost.message,
        }

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
        for session_id, version in self._unstored.pop((split, key), ()):
            self._unneeded.put_nowait(UnneededSession(session_id, version))

    def forget(self, session_id: str) -> None:
        """Nobody uses this session, which may not exist."""
        self._unneeded.put_nowait(UnneededSession(session_id))

    def forget_attempt(self, split: Split, key: RolloutKey) -> None:
        """Nobody uses the sessions of this attempt: whoever opened them was lost, and did not tell their names."""
        self._unneeded.put_nowait(UnneededSession(label=label_of(split, key)))

    def read(self, request: RolloutRequest, session_id: str, version: str) -> None:
        """The record of a session was read at this version. It is kept until the rollout is stored."""
        self._unstored.setdefault((request.split, request.key), []).append((session_id, version))
        self._completed += 1

    def hand_over(self, request: RolloutRequest) -> SessionsLeft:
        """The sessions that the holder of the lease is to delete: at once, or when the rollout is stored."""
        unneeded = [self._unneeded.get_nowait() for _ in range(self._unneeded.qsize())]
        return SessionsLeft(tuple(self._unstored.pop((request.split, request.key), ())), tuple(unneeded))

    def take_over(self, request: RolloutRequest, left: SessionsLeft) -> None:
        """Delete these sessions of another process when their time has come."""
        for session_id, version in left.read:
            self.read(request, session_id, version)
        for unneeded in left.unneeded:
            self._unneeded.put_nowait(unneeded)

    def started_again(self, url: str, starts: int) -> None:
        """The gateway was started again, perhaps elsewhere, and has lost its sessions."""
        if starts <= self.starts:
            return
        self.starts, self.base_url = starts, url
        self.client.move(url)
        self._give_up("the gateway was started again")
        self.changed.notify()

    def cannot_go_on(self, reason: LoopwrightError) -> None:
        """The gateway cannot be used any more."""
        self.lost = reason
        self._end_all()
        self.changed.notify()

    def _give_up(self, reason: str) -> None:
        """All open sessions are over."""
        self.given_up.append(EngineLostError(reason, remedy="nothing to do: the rollouts are made again"))
        self._end_all()

    def _end_all(self) -> None:
        for look in tuple(self.looks):
            look()

    def times(self, session_id: str) -> HeardTimes:
        return self._heard.get(session_id, HeardTimes())

    def clock_now(self) -> float:
        """The clock, if the gateway has just answered."""
        return self.clock + min(self._now() - self._heard_at, LONGEST_STEP_SECONDS)

    async def beat(self) -> None:
        """Renew the lease, and take what the gateway tells."""
        said = await (self.client.register() if self._holds_lease else self.client.hear())
        try:
            heard = {id: heard_times(times, said["now"]) for id, times in said["sessions"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise EngineError(
                f"the gateway's answer cannot be read: {type(error).__name__} {error}",
                remedy="use a gateway of the same version of Loopwright",
            ) from error
        self.clock, self._heard_at = self.clock_now(), self._now()
        self.base_url = said.get("advertise_url") or self.client.url
        self._heard, self._heard_time = heard, time.time()
        # An older gateway does not say how many wait.
        self._waiting = said.get("waiting")

    async def keep_beating(self) -> None:
        """Beat until another run has the gateway."""
        while True:
            await asyncio.sleep(self._beat_seconds)
            try:
                await self.beat()
            except LeaseError as taken:
                self.cannot_go_on(taken)
                return
            except LoopwrightError as error:
                log.warning("the gateway at %s does not serve the run: %s", self.client.url, error.message)
                self._give_up_after(error)

    def _give_up_after(self, error: LoopwrightError) -> None:
        """Give up all sessions if the gateway has not served the run for too long."""
        silent = self._now() - max(self._heard_at, self._given_up_at)
        if silent >= self.client.wait_seconds:
            self._given_up_at = self._now()
            self._give_up(f"the gateway did not serve the run for {silent:.0f} s: {error.message}")

    async def keep_deleting(self) -> None:
        """Delete the sessions whose rollouts are stored, and those that nobody uses."""
        while True:
            unneeded = await self._unneeded.get()
            # What cannot be deleted now is deleted at the end of the run.
            with suppress(LoopwrightError):
                for path in await self._paths(unneeded):
                    await self.client.ask("DELETE", path)

    async def _paths(self, unneeded: UnneededSession) -> list[str]:
        if unneeded.id:
            version = f"?version={unneeded.version}" if unneeded.version else ""
            return [f"/sessions/{unneeded.id}{version}"]
        prefix, said = self.client.registration.prefix, await self.client.ask("GET", "/sessions")
        own = (one for one in said["sessions"] if one["id"].startswith(prefix))
        return [f"/sessions/{one['id']}" for one in own if one["label"] == unneeded.label]


@asynccontextmanager
async def open_remote_policies(
    address: GatewayAddress,
    registration: Registration,
    unfinished: Unfinished = NOTHING,
    *,
    held: Callable[[], float] = never_held,
    redact: Redactor | None = None,
    beat_seconds: float = BEAT_SECONDS,
) -> AsyncIterator[RemoteSessionPolicies]:
    """Register the run with a gateway, and give policies that are sessions there. What an earlier process of the run
    has completed for its `unfinished` groups is taken over. `held` reads the clock of held seconds of the run's
    engines. Raises LeaseError if another run holds the gateway, and EngineLostError if it does not answer in time."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as http:
        client = GatewayClient(http, address, registration)
        policies = RemoteSessionPolicies(client, beat_seconds, held, redact)
        await policies.beat()
        tasks = [asyncio.create_task(policies.keep_beating()), asyncio.create_task(policies.keep_deleting())]
        try:
            # With many sessions this takes longer than the lease lives.
            policies.earlier = await take_over(client, unfinished)
        except BaseException:
            # Not `leave`: it would delete what the next process of the run takes over.
            await _ended(tasks)
            raise
        try:
            yield policies
        finally:
            await _ended(tasks)
            with suppress(LoopwrightError, TimeoutError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await client.leave()


@asynccontextmanager
async def join_remote_policies(
    address: GatewayAddress,
    registration: Registration,
    *,
    held: Callable[[], float] = never_held,
    redact: Redactor | None = None,
    beat_seconds: float = BEAT_SECONDS,
) -> AsyncIterator[RemoteSessionPolicies]:
    """Policies that are sessions of a run which another process has registered. That one also deletes them: it gets
    their names from `hand_over`."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as http:
        client = GatewayClient(http, address, registration)
        policies = RemoteSessionPolicies(client, beat_seconds, held, redact, holds_lease=False)
        task = asyncio.create_task(policies.keep_beating())
        try:
            yield policies
        finally:
            await _ended([task])


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class _OpenSession:
    """A session, and where the rollout's clocks stood when it was opened. By `own_seconds_without_call` the agent had
    not asked the model yet. `given_up` is how often the gateway had been given up before."""

    id: str
    own_seconds: float
    clock: float
    given_up: int = 0
    own_seconds_without_call: float = 0.0
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
        self._start = self._own_now()
        self._opening: float | None = None
        """The rollout's own seconds when it asked for its session. They stand still until the gateway has answered."""
        self._session: _OpenSession | None = None
        self._lost: LoopwrightError | None = None
        self._stop: StopReason | None = None
        self._look: Callable[[], None] | None = None

    @asynccontextmanager
    async def endpoint(self, *, max_tokens: int | None = None) -> AsyncIterator[Endpoint]:
        own_seconds = self._opening = self._own_now() - self._start
        try:
            said = await self._opened(max_tokens)
        except LoopwrightError as error:
            self._lost = error
            raise
        clock, given_up = self._gateway.clock_now(), len(self._gateway.given_up)
        session = self._session = _OpenSession(str(said["id"]), own_seconds, clock, given_up)
        waits = None
        try:
            urls = base_urls(self._gateway.base_url, session.id)
            yield Endpoint(urls["openai"], str(said["key"]), urls["anthropic"], self._gateway.model)
        except asyncio.CancelledError:
            waits = CANCELLED_SECONDS
            raise
        finally:
            session.ended = self._own_now(), self.times()
            try:
                async with asyncio.timeout(waits):
                    await self._read(session)
            except (LoopwrightError, TimeoutError) as error:
                # Not raised: it would replace what the agent raised, or its cancellation. The worker sees it as fault.
                self._lost = error if isinstance(error, LoopwrightError) else _unread(CANCELLED_SECONDS)
                self._gateway.forget(session.id)

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
            remedy="ask at the endpoint's URL; or remove gateway.url, and leave agent and gateway in the driver",
        )

    def own_seconds(self) -> float:
        return self.times().total

    def _own_now(self) -> float:
        """The clock of a rollout without a session: it stands still while the engines are held."""
        return self._now() - self._gateway.held()

    @property
    def request(self) -> RolloutRequest:
        return self._request

    def times(self) -> SessionTimes:
        session = self._session
        if session is None:
            return SessionTimes(self._own_now() - self._start if self._opening is None else self._opening, None)
        if session.ended is not None:
            at, times = session.ended
            return SessionTimes(times.total + self._own_now() - at, times.since_first_call)
        if self._given_up(session) is not None:
            return SessionTimes(math.inf, None)
        return _counted(session, self._gateway.times(session.id), self._gateway.clock)

    def watch_time(self, look: Callable[[], None] | None) -> None:
        """The clock of a session jumps once, if the gateway is given up."""
        if self._look is not None:
            self._gateway.looks.discard(self._look)
        self._look = look
        if look is not None:
            self._gateway.looks.add(look)

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
            "affinity": self._request.group,
        }
        # Every try has an id of its own: the answer to the try before may have been lost.
        tried: list[str] = []

        def path() -> str:
            tried.append(self._new_id())
            return f"/sessions/{tried[-1]}"

        used = None
        try:
            said = await self._client.ask("POST", path, body)
            used = str(said["id"])
            return said
        finally:
            for session_id in tried:
                if session_id != used:
                    self._gateway.forget(session_id)

    def _new_id(self) -> str:
        key = self._request.key
        trial = session_name(self._request.split, key, secrets.token_hex(4))
        return f"{self._client.registration.prefix}{trial}"

    def _given_up(self, session: _OpenSession) -> LoopwrightError | None:
        """Why nobody waits for the session any more."""
        later = self._gateway.given_up[session.given_up :]
        return self._gateway.lost or (later[0] if later else None)

    async def _read(self, session: _OpenSession) -> None:
        """Complete the session, and read what it has recorded."""
        if (why := self._given_up(session)) is not None:
            raise why
        ended = await self._client.ask("POST", f"/sessions/{session.id}/complete")
        session.ended = self._own_now(), _counted(session, heard_times(ended, ended["now"]), self._gateway.clock_now())
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


def _unread(seconds: float) -> EngineLostError:
    return EngineLostError(
        f"the rollout was cancelled, and the gateway did not answer for {seconds:g} s",
        remedy="see whether `loopwright gateway --for-runs` is running there, and what its log says",
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
            session.own_seconds_without_call = total
            return SessionTimes(total, None)
        # Read once: later the gateway's answer would also count seconds in which the gateway was away. It may count
        # them even now, so the first call is not placed before an answer that did not know of it.
        at_first_call = max(session.own_seconds_without_call, total - heard.since_first_call)
        session.own_seconds_at_first_call = at_first_call
    return SessionTimes(total, max(0.0, total - session.own_seconds_at_first_call))


def _drift(said: Mapping[str, Any]) -> EpisodeDrift:
    return drift_from_json({**said, "tokens": said["recorded"]})
