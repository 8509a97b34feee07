"""A run's side of a gateway in another process: its requests, and its lease.

Every request is tried again while the gateway cannot be reached, but not for ever. A gateway that stays away, or that
has lost a session, is infrastructure: EngineLostError. A gateway that another run has taken is LeaseError.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from loopwright.errors import ConfigError, EngineError, EngineLostError, LeaseError, LoopwrightError, RunError
from loopwright.gateway.registration import Registration, registration_to_json

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("loopwright")

LEASE_SECONDS = 60.0
WAIT_SECONDS = 120.0
REQUEST_SECONDS = 60.0
REGISTER_SECONDS = 180.0
"""A gateway that is new to the run loads its tokenizer first."""
RENEWALS_PER_LEASE = 4
"""A renewal that is not answered is sent again so often while the lease lives. A gateway that was started again loads
the tokenizer meanwhile: it does not begin anew."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0
NOT_THERE = frozenset({408, 429, 500, 502, 503, 504})
"""A gateway that cannot answer now, or a proxy in front of one that is away."""
UNKNOWN = 404
SEE_LOG = "see the gateway's own log"
WRONG_KEY = (ConfigError, "let the variable that gateway.key_env names hold the gateway's key")
SESSION_LOST = (EngineLostError, "nothing to do: the rollout is made again")
KINDS: Mapping[int, tuple[type[LoopwrightError], str]] = {
    401: WRONG_KEY,
    403: WRONG_KEY,
    UNKNOWN: SESSION_LOST,
    410: SESSION_LOST,
    409: (LeaseError, "wait for that run to end, or use another gateway"),
}


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """A gateway that runs elsewhere. `url` may have a path. A request waits up to `wait_seconds` for a gateway that
    cannot be reached."""

    url: str
    key: str
    wait_seconds: float = WAIT_SECONDS


class GatewayClient:
    """Asks one gateway for one run. All requests share the connections of `http`."""

    def __init__(self, http: httpx.AsyncClient, address: GatewayAddress, registration: Registration) -> None:
        self._http = http
        self.address = address
        self._url = address.url.rstrip("/")
        self.wait_seconds = address.wait_seconds
        self._headers = {"authorization": f"Bearer {address.key}", **registration.holder.headers()}
        self._is_waiting = False
        self._is_registered = False
        self.registration = registration

    @property
    def url(self) -> str:
        return self._url

    def move(self, url: str) -> None:
        """The gateway is at another address now. Requests that wait for it find it there."""
        self.address = replace(self.address, url=url)
        self._url = url.rstrip("/")

    async def register(self) -> Mapping[str, Any]:
        """Register the run, or renew its lease. The answer tells the times of its open sessions."""
        body = registration_to_json(self.registration, LEASE_SECONDS)
        seconds = LEASE_SECONDS / RENEWALS_PER_LEASE if self._is_registered else REGISTER_SECONDS
        try:
            said = await self.ask("PUT", "/run", body, seconds=seconds)
        except EngineLostError as error:
            if error.facts.get("status") != UNKNOWN:
                raise
            raise ConfigError(
                error.message, remedy="start that gateway with `loopwright gateway --for-runs`"
            ) from error
        self._is_registered = True
        return said

    async def hear(self) -> Mapping[str, Any]:
        """The times of the run's open sessions, for a process that does not hold the lease itself."""
        said = await self.ask("GET", "/run", seconds=LEASE_SECONDS / RENEWALS_PER_LEASE)
        if "sessions" in said:
            return said
        if said.get("run") is None:
            raise EngineLostError(
                f"the run is not registered with the gateway at {self._url}",
                remedy="nothing to do: the run registers again",
            )
        raise LeaseError(f"another run holds the gateway at {self._url}", remedy="use another gateway")

    async def leave(self) -> None:
        """The run has ended. A gateway that is away has no registration any more."""
        await self.tell("DELETE", "/run")

    async def tell(self, method: str, path: str, body: Any = None) -> None:
        """Tell the gateway something, once. A gateway that is away need not know it."""
        with suppress(_AwayError):
            await self._asked(method, path, body, REQUEST_SECONDS)

    async def ask(
        self, method: str, path: str | Callable[[], str], body: Any = None, *, seconds: float = REQUEST_SECONDS
    ) -> Mapping[str, Any]:
        """The answer. A path that is a function is called for every try."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self.wait_seconds, FIRST_PAUSE_SECONDS
        while True:
            try:
                return await self._asked(method, path if isinstance(path, str) else path(), body, seconds)
            except _AwayError as away:
                if loop.time() + pause > deadline:
                    raise EngineLostError(
                        f"the gateway at {self._url} did not answer for {self.wait_seconds:g} s: {away}",
                        remedy="see whether `loopwright gateway --for-runs` is running there, and what its log says",
                    ) from away
                if not self._is_waiting:
                    log.warning("waiting for the gateway at %s: %s", self._url, away)
                self._is_waiting = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _asked(self, method: str, path: str, body: Any, seconds: float) -> Mapping[str, Any]:
        import httpx

        content = None if body is None else orjson.dumps(body)
        try:
            # httpx's own timeout starts again with every byte that arrives.
            async with asyncio.timeout(seconds):
                answer = await self._http.request(method, self._url + path, content=content, headers=self._headers)
        except (httpx.TransportError, httpx.DecodingError, TimeoutError) as error:
            raise _AwayError(f"{type(error).__name__} {error}".rstrip()) from error
        if answer.status_code not in NOT_THERE:
            self._is_waiting = False
        if answer.is_success:
            return _read(answer.content)
        raise self._error(answer.status_code, answer.content)

    def _error(self, status: int, text: bytes) -> Exception:
        said = _said(text)
        if status in NOT_THERE:
            return _AwayError(f"status {status}: {said}")
        kind, remedy = KINDS.get(status, (RunError, SEE_LOG))
        return kind(f"the gateway at {self._url} answered {status}: {said}", remedy=remedy, status=status)


class _AwayError(Exception):
    """The gateway cannot be reached, or cannot answer now. It never leaves the client."""


def _read(text: bytes) -> Mapping[str, Any]:
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"the gateway's answer is no JSON: {error}", remedy=SEE_LOG) from error
    if not isinstance(said, dict):
        raise EngineError("the gateway's answer is no JSON object", remedy=SEE_LOG)
    return said


def _said(text: bytes) -> str:
    """What an error says, whoever has written it."""
    try:
        match orjson.loads(text):
            case {"error": {"message": str(message)}}:
                return message[:500]
    except orjson.JSONDecodeError:
        pass
    return text[:200].decode(errors="replace")
