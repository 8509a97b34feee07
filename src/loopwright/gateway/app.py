"""The gateway as an ASGI app: it checks who asks for what, and answers in the dialect of the client.

Every error becomes a typed answer here, once (S4). Our own bugs are answered as server errors and raised, so that the
server's log has them. A refused request has changed nothing.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

from loopwright.errors import LoopwrightError, RefusedError
from loopwright.gateway.calls import ModelCalls
from loopwright.gateway.dialects import AnthropicMessages, ChatCompletions, Completions, Dialect, Gemini, Responses
from loopwright.gateway.http import ClientGoneError, Headers, Request
from loopwright.gateway.management import Management
from loopwright.gateway.refusals import Code, as_refusal, code_of, refused
from loopwright.gateway.routes import METHODS, Action, Target, target_of
from loopwright.gateway.sessions import Sessions
from loopwright.serve.guard import Receive, Scope, Send

DIALECTS: dict[Action, Dialect] = {
    Action.CHAT: ChatCompletions(),
    Action.COMPLETIONS: Completions(),
    Action.RESPONSES: Responses(),
    Action.INPUT_TOKENS: Responses(),
    Action.COMPACT: Responses(),
    Action.MESSAGES: AnthropicMessages(),
    Action.COUNT_TOKENS: AnthropicMessages(),
    Action.GENERATE: Gemini(),
    Action.GENERATE_STREAM: Gemini(),
    Action.COUNT_CONTENT: Gemini(),
}
NO_KEY = frozenset({Action.HEALTH, Action.OPENAPI, Action.BASE})
"""Actions that reveal nothing about a session, so they need no key."""
OWN_KEY = frozenset({Action.SESSION, Action.MODELS, Action.RESPONSE, Action.INPUT_ITEMS, *DIALECTS})
"""Actions for which a session's own key is enough. The gateway's key opens them too."""

Handler = Callable[[Request, Target], Awaitable[None]]


class GatewayApp:
    """An ASGI app. `key` opens everything."""

    def __init__(self, sessions: Sessions, management: Management, calls: ModelCalls, *, key: str) -> None:
        self._sessions = sessions
        self._calls = calls
        self._metrics = calls.metrics
        self._key = key.encode()
        self._handlers: dict[Action, Handler] = {
            Action.HEALTH: management.health,
            Action.METRICS: management.show_metrics,
            Action.OPENAPI: management.openapi,
            Action.SESSIONS: management.sessions,
            Action.SESSION: management.session,
            Action.COMPLETE: management.complete,
            Action.CHAINS: management.chains,
            Action.RECORD: management.record,
            Action.OUTCOME: management.outcome,
            Action.RUN: management.run,
            Action.BASE: management.health,
            Action.MODELS: calls.models,
            Action.RESPONSE: calls.response,
            Action.INPUT_ITEMS: calls.input_items,
            Action.INPUT_TOKENS: calls.input_tokens,
            Action.COMPACT: calls.compact,
            Action.COUNT_TOKENS: calls.count_tokens,
            Action.COUNT_CONTENT: calls.count_content,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        request = Request(scope, receive, send)
        target = target_of(request.path)
        try:
            await self._serve(request, target)
        except ClientGoneError:
            return
        except LoopwrightError as error:
            await _refuse(request, target, error)
        finally:
            if request.status:
                route = "unknown" if target is None else target.action.value
                self._metrics.answered(route, request.status, time.perf_counter() - started)

    async def refuse(self, scope: Scope, send: Send, error: RefusedError) -> None:
        """Answer a request that the guard refused before it reached the app."""
        request = Request(scope, _nothing, send)
        await _refuse(request, target_of(request.path), error)

    async def _serve(self, request: Request, target: Target | None) -> None:
        if target is None:
            raise refused(
                Code.UNKNOWN, f"there is nothing at {request.path:.200}", remedy="see /openapi.json for what there is"
            )
        if request.method not in METHODS[target.action]:
            allowed = " or ".join(METHODS[target.action])
            raise refused(Code.METHOD, f"{request.method:.10} cannot be used here", remedy=f"use {allowed}")
        if target.action not in NO_KEY and not (target.action is Action.SESSION and request.method == "HEAD"):
            self._check_key(request, target)
        if target.action in self._handlers:
            await self._handlers[target.action](request, target)
        else:
            await self._calls.answer(request, target, DIALECTS[target.action])

    def _check_key(self, request: Request, target: Target) -> None:
        """The gateway's key opens everything; a session's key opens that session (S3).

        This check comes before anything is said about the session: without its key nobody learns whether it exists.
        """
        keys = request.keys
        if any(hmac.compare_digest(key.encode(), self._key) for key in keys):
            return
        manages = target.action not in OWN_KEY or (target.action is Action.SESSION and request.method != "GET")
        owners = [owner for key in keys if (owner := self._sessions.owner_of(key)) is not None]
        if not owners:
            raise refused(
                Code.KEY,
                "the key is missing or wrong",
                remedy=f"send it as `authorization: Bearer KEY` or `{_key_header(target)}: KEY`",
            )
        if target.session not in owners or manages:
            raise refused(
                Code.FORBIDDEN,
                "this key opens the model calls of one session, and not this",
                remedy="use that session's key, or the gateway's",
            )


def _key_header(target: Target) -> str:
    return "x-goog-api-key" if isinstance(DIALECTS.get(target.action), Gemini) else "x-api-key"


async def _nothing() -> NoReturn:
    raise RuntimeError("a request that was refused is not read")


async def _refuse(request: Request, target: Target | None, error: LoopwrightError) -> None:
    refusal = as_refusal(error)
    code = code_of(refusal)
    headers: Headers = ()
    if code is Code.GONE:
        headers = ((b"x-should-retry", b"false"),)
    if code is Code.ENGINE:
        headers = ((b"retry-after", b"1"),)
    body = _dialect(request, target).error(refusal)
    await request.answer(refusal.facts["status"], body, headers)


def _dialect(request: Request, target: Target | None) -> Dialect:
    """The client's dialect: by the path, or by a header that only one dialect's clients send."""
    known = DIALECTS.get(target.action) if target is not None else None
    if known is not None:
        return known
    if request.header("x-goog-api-key"):
        return DIALECTS[Action.GENERATE]
    return DIALECTS[Action.MESSAGES if request.header("anthropic-version") else Action.CHAT]
