"""The client of an agent server: `loopwright.AgentServer`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from loopwright.agents.trials.http_session import http_session
from loopwright.agents.trials.wire import SEE_SERVER, Trial, TrialState, TrialStatus, status_from_json, trial_to_json
from loopwright.errors import AgentServerError, ConfigError, RefusedError
from loopwright.ports import Endpoint
from loopwright.types import Task

if TYPE_CHECKING:
    import httpx

REQUEST_SECONDS = 30.0
HOLD_SECONDS = 20.0
"""How long the server holds a question for news back."""
FULL = 429
DRAINING = 503
UNKNOWN = 404
GONE = 410
AWAY = frozenset({408, 500, 502, 504})
"""A server that cannot answer now, or a proxy in front of one that is away."""


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """How busy a server is."""

    slots: int
    running: int
    queued: int
    room: int
    draining: bool


class AgentServer:
    """Asks one agent server. Use it as `async with`. With the key of a trial, it can ask for that trial only.

    A server that cannot be reached, is full or has lost a trial raises `loopwright.errors.AgentServerError`.
    """

    def __init__(self, url: str, key: str) -> None:
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._http: httpx.AsyncClient | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._http = await self._stack.enter_async_context(http_session())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http = None
        await self._stack.aclose()

    async def submit(
        self,
        id: str,
        task: Task,
        *,
        runner: Mapping[str, Any],
        base_url: str,
        api_key: str,
        model: str = "default",
        anthropic_url: str | None = None,
        reward: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        grades: bool = True,
        grades_failures: bool = False,
        label: str = "",
    ) -> str:
        """Submit a trial under an id of your choice, and return the trial's own key. The same trial may be submitted
        again: it is run once.

        `runner` and `reward` are sections as in a config file. `base_url` and `api_key` lead the program to its model.
        Without `grades`, a runner that brings a reward of its own does not grade.
        """
        endpoint = Endpoint(base_url, api_key, anthropic_url or base_url.removesuffix("/v1"), model)
        trial = Trial(runner, task, endpoint, reward, variables or {}, grades, grades_failures, label)
        said = await self._ask("POST", f"/trials/{id}", trial_to_json(trial))
        return str(said.get("key", ""))

    async def status(self, id: str, *, after: TrialState | None = None, seconds: float = 0.0) -> TrialStatus:
        """What the server says of a trial. With `after`, it answers when the trial has left that state, or after so
        many seconds."""
        query = "" if after is None else f"?after={after.value}&seconds={seconds:g}"
        return status_from_json(await self._ask("GET", f"/trials/{id}{query}", seconds=REQUEST_SECONDS + seconds))

    async def result(self, id: str, *, seconds: float | None = None) -> TrialStatus:
        """Wait for the end of a trial, at most so many seconds (TimeoutError)."""
        async with asyncio.timeout(seconds):
            status = await self.status(id)
            while not status.state.is_over:
                status = await self.status(id, after=status.state, seconds=HOLD_SECONDS)
            return status

    async def stop(self, id: str) -> TrialStatus:
        """The trial's time is up: end its program, and grade what it has done. Returns when the program has ended."""
        return status_from_json(await self._ask("POST", f"/trials/{id}/stop"))

    async def cancel(self, id: str) -> TrialStatus:
        """End a trial. A trial that was not submitted yet will never run. Returns when nothing of it is left."""
        return status_from_json(await self._ask("POST", f"/trials/{id}/cancel"))

    async def list(self, *, label: str | None = None, all: bool = False) -> list[TrialStatus]:
        """The trials that are not over, or the latest of all, without their output."""
        said = await self._ask("GET", f"/trials?all={int(all)}")
        found = [status_from_json(one) for one in said.get("trials", ())]
        return [one for one in found if label is None or one.label == label]

    async def load(self) -> ServerLoad:
        said = await self._ask("GET", "/load")
        try:
            return ServerLoad(**{name: said[name] for name in ServerLoad.__dataclass_fields__})
        except (KeyError, TypeError) as error:
            raise AgentServerError(f"{self.url} is no agent server: {error!r}", remedy="see its URL") from error

    async def drain(self, *, on: bool = True) -> ServerLoad:
        """Accept no more trials, and finish those that are there. With `on` false, accept them again."""
        await self._ask("POST" if on else "DELETE", "/drain")
        return await self.load()

    async def events(self, id: str | None = None) -> AsyncIterator[Mapping[str, Any]]:
        """The changes of state as they happen, of one trial until its end, or of all."""
        import httpx

        path = "/events" if id is None else f"/trials/{id}/events"
        try:
            async with self._session.stream("GET", self.url + path, headers=self._headers) as answer:
                if not answer.is_success:
                    raise self._error(answer.status_code, await answer.aread())
                async for line in answer.aiter_lines():
                    if line.startswith("data:"):
                        yield json.loads(line.removeprefix("data:"))
        except (httpx.TransportError, ValueError) as error:
            raise self._away(error) from error

    @property
    def _session(self) -> httpx.AsyncClient:
        if self._http is None:
            raise RuntimeError("use an AgentServer as `async with`")
        return self._http

    async def _ask(
        self, method: str, path: str, body: Any = None, *, seconds: float = REQUEST_SECONDS
    ) -> Mapping[str, Any]:
        import httpx

        session, content = self._session, None if body is None else json.dumps(body).encode()
        try:
            # httpx's own timeout starts again with every byte that arrives.
            async with asyncio.timeout(seconds):
                answer = await session.request(method, self.url + path, content=content, headers=self._headers)
        except (httpx.TransportError, httpx.DecodingError, TimeoutError) as error:
            raise self._away(error) from error
        if not answer.is_success:
            raise self._error(answer.status_code, answer.content)
        try:
            said = json.loads(answer.content)
        except ValueError as error:
            raise self._away(error) from error
        return said if isinstance(said, dict) else {}

    def _away(self, error: Exception) -> AgentServerError:
        import httpx

        return AgentServerError(
            f"the agent server at {self.url} cannot be reached: {type(error).__name__} {error}".rstrip(),
            remedy="see whether `loopwright agent-server` is running there, and what its log says",
            status=0,
            sent=not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout),
        )

    def _error(self, status: int, text: bytes) -> Exception:
        said, remedy = _said(text)
        words = f"the agent server at {self.url} answered {status}: {said}"
        if status in (401, 403):
            return ConfigError(words, remedy="give it that server's key")
        if status in (FULL, DRAINING, UNKNOWN, GONE) or status in AWAY:
            return AgentServerError(words, remedy=remedy, status=0 if status in AWAY else status, sent=True)
        return RefusedError(words, remedy=remedy, status=status)


def _said(text: bytes) -> tuple[str, str]:
    try:
        match json.loads(text):
            case {"error": {"message": str(message), "remedy": str(remedy)}}:
                return message[:1000], remedy[:500]
    except ValueError:
        pass
    return text[:200].decode(errors="replace"), SEE_SERVER
