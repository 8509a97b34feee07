"""The agent server as an ASGI app: it checks who asks for what, and answers.

Every error becomes a typed answer here, once (S4). A refused request has changed nothing. The server's key opens
everything; a trial's key opens that trial only (S3), and is checked before anything is said about the trial.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from dataclasses import asdict
from typing import Any, NoReturn

import orjson

from loopwright.agent_server.reading import submission_from
from loopwright.agent_server.trials import Trials
from loopwright.agents.trials.wire import TRIAL_ID, TrialState, status_to_json
from loopwright.core.redaction import OWN_KEY_PREFIX
from loopwright.errors import LoopwrightError, RefusedError
from loopwright.gateway.http import EVENTS, TEXT, ClientGoneError, Request
from loopwright.gateway.reading import read_json
from loopwright.gateway.refusals import as_refusal
from loopwright.serve.errors import error_body
from loopwright.serve.guard import Receive, Scope, Send

LONGEST_HOLD_SECONDS = 60.0
BEAT_SECONDS = 10.0
BEAT = b": still here\n\n"
OWN_ACTIONS = {("GET", ""), ("GET", "result"), ("GET", "events"), ("POST", "stop"), ("POST", "cancel")}
"""What a trial's own key may do with it."""
ACTIONS = OWN_ACTIONS | {("POST", "")}
PLAIN = {
    ("GET", "health"),
    ("GET", "load"),
    ("GET", "metrics"),
    ("GET", "events"),
    ("GET", "trials"),
    ("POST", "drain"),
    ("DELETE", "drain"),
}


def trial_key(server_key: str, id: str) -> str:
    """The key of one trial. It follows from the server's key, so nothing has to be kept, and a trial that is submitted
    again has the same."""
    made = hmac.new(server_key.encode(), f"trial {id}".encode(), hashlib.sha256).digest()
    return OWN_KEY_PREFIX + base64.urlsafe_b64encode(made).rstrip(b"=").decode()


class AgentServerApp:
    """An ASGI app over `trials`. `key` opens everything."""

    def __init__(self, trials: Trials, *, key: str) -> None:
        self._trials = trials
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            await self._serve(request)
        except ClientGoneError:
            return
        except LoopwrightError as error:
            await _refuse(request, error)
        finally:
            self._trials.metrics.requests[request.status] += 1

    async def refuse(self, scope: Scope, send: Send, error: RefusedError) -> None:
        """Answer a request that the guard refused before it reached the app."""
        await _refuse(Request(scope, _nothing, send), error)

    async def _serve(self, request: Request) -> None:
        parts = [part for part in request.path.split("/") if part]
        if parts == ["health"] and request.method in ("GET", "HEAD"):
            await request.answer(200, {"status": "draining" if self._trials.draining else "ok"})
        elif len(parts) == 1:
            self._check_key(request, None)
            await self._plain(request, parts[0])
        elif len(parts) in (2, 3) and parts[0] == "trials":
            id, action = parts[1], parts[2] if len(parts) == 3 else ""
            own = id if (request.method, action) in OWN_ACTIONS else None
            self._check_key(request, own)
            if not TRIAL_ID.fullmatch(id):
                raise _refused("an id has 8 to 64 letters, digits, _ or -", "choose another id", 400)
            await self._trial(request, id, action)
        else:
            self._check_key(request, None)
            raise _unknown(request)

    async def _plain(self, request: Request, name: str) -> None:
        trials = self._trials
        if (request.method, name) not in PLAIN:
            raise _unknown(request)
        match name:
            case "load":
                await request.answer(200, asdict(trials.load()))
            case "metrics":
                text = trials.metrics.text(trials.states(), trials.load().slots)
                await request.answer_bytes(200, text.encode(), (TEXT,))
            case "drain":
                trials.draining = request.method == "POST"
                await request.answer(200, asdict(trials.load()))
            case "trials":
                listed = trials.all(also_over=request.parameter("all") == "1")
                await request.answer(200, {"trials": [{**status_to_json(one), "output": None} for one in listed]})
            case _:
                await request.while_here(self._stream(request, None))

    async def _trial(self, request: Request, id: str, action: str) -> None:
        trials = self._trials
        if (request.method, action) not in ACTIONS:
            raise _unknown(request)
        match request.method, action:
            case "POST", "":
                status = trials.submit(id, submission_from(read_json(await request.body())))
                answer = {**status_to_json(status), "key": trial_key(self._key, id)}
                await request.answer(201 if status.state is TrialState.QUEUED else 200, answer)
                return
            case "GET", "events":
                # An unknown trial is refused before the stream begins.
                await trials.status(id, None, 0.0)
                await request.while_here(self._stream(request, id))
                return
            case "GET", "":
                after, seconds = _after(request), _seconds(request)
                status = await request.while_here(trials.status(id, after, seconds))
            case "GET", _:
                status = await trials.status(id, None, 0.0)
                if not status.state.is_over:
                    raise _refused(f"the trial is not over: {status.state}", "ask again later", 409)
            case _, "stop":
                status = await trials.stop(id)
            case _:
                status = await trials.cancel(id)
        await request.answer(200, status_to_json(status))

    async def _stream(self, request: Request, id: str | None) -> None:
        first = True
        async with aclosing(self._events(id)) as events:
            async for chunk in events:
                if first:
                    await request.begin(200, EVENTS)
                first = False
                await request.write(chunk)
        await request.write(b"", more=False)

    async def _events(self, id: str | None) -> AsyncGenerator[bytes, None]:
        """The events of one trial until its end, or of all, as bytes. Silence is filled with comments."""
        trials = self._trials
        with trials.announcements.listening(id) as listener, ExitStack() as watching:
            yield BEAT
            if id is not None:
                status = await trials.status(id, None, 0.0)
                yield _event(trials.announcements.event(status))
                if status.state.is_over:
                    return
                if (live := trials.watch(id)) is not None:
                    watching.enter_context(live.watched())
            while True:
                try:
                    async with asyncio.timeout(BEAT_SECONDS):
                        news = await listener.news.get()
                except TimeoutError:
                    yield BEAT
                    continue
                if news is None:
                    return
                yield _event(news)

    def _check_key(self, request: Request, id: str | None) -> None:
        """`id` is the trial whose own key is enough."""
        allowed = [self._key, *([trial_key(self._key, id)] if id is not None else [])]
        matches = [hmac.compare_digest(key.encode(), one.encode()) for key in request.keys for one in allowed]
        if not any(matches):
            raise _refused("the key is missing or wrong", "send it as `authorization: Bearer KEY`", 401)


def _event(news: dict[str, Any]) -> bytes:
    return b"id: %d\nevent: trial\ndata: %s\n\n" % (news["number"], orjson.dumps(news))


def _after(request: Request) -> TrialState | None:
    given = request.parameter("after")
    try:
        return None if given is None else TrialState(given)
    except ValueError as error:
        raise _refused(f"{given!r:.40} is no state", f"use one of {', '.join(TrialState)}", 400) from error


def _seconds(request: Request) -> float:
    try:
        seconds = float(request.parameter("seconds") or 0)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_HOLD_SECONDS:
        raise _refused("seconds cannot be read", f"send a number from 0 to {LONGEST_HOLD_SECONDS:g}", 400)
    return seconds


def _unknown(request: Request) -> RefusedError:
    return _refused(
        f"there is no {request.method:.10} {request.path:.200}", "see docs/agent-server.md for what there is", 404
    )


def _refused(message: str, remedy: str, status: int) -> RefusedError:
    return RefusedError(message, remedy=remedy, status=status)


async def _nothing() -> NoReturn:
    raise RuntimeError("a request that was refused is not read")


async def _refuse(request: Request, error: LoopwrightError) -> None:
    refusal = as_refusal(error)
    status = refusal.facts.get("status", 400)
    headers = ((b"retry-after", b"1"),) if status in (429, 503) else ()
    await request.answer(status, error_body(refusal), headers)
