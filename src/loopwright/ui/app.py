"""The ASGI app of the page: its files, which hold no data, and answers about runs, which need the key (S3).

Every answer is read in a thread, because reading a database would block the other pages. Nothing can be changed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from loopwright.errors import LoopwrightError, RefusedError
from loopwright.serve.errors import error_body
from loopwright.serve.guard import Message, Receive, Scope, Send
from loopwright.ui.access import Access
from loopwright.ui.answers import NO_STORE, json_answer
from loopwright.ui.asked import Asked
from loopwright.ui.health_answers import alarms_alone, health, status_alone
from loopwright.ui.run_answers import config_of, list_runs, metrics_of, overview
from loopwright.ui.run_view import RunView
from loopwright.ui.served import ServedRuns
from loopwright.ui.step_answers import find_text, list_steps, show_step
from loopwright.ui.timeline_answers import timeline
from loopwright.ui.token_answers import show_tokens
from loopwright.ui.trajectory_answers import copy_rollout, show_rollout, show_text
from loopwright.ui.watching import Watcher, event_stream

STATIC = Path(str(files("loopwright.ui").joinpath("static")))
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
MOST_LOGIN_BYTES = 4096

Answer = Callable[[RunView, Asked], Any]
OF_A_RUN: Mapping[str, Answer] = {
    "": overview,
    "/metrics": metrics_of,
    "/config": config_of,
    "/steps": list_steps,
    "/step": show_step,
    "/search": find_text,
    "/rollout": show_rollout,
    "/text": show_text,
    "/copy": copy_rollout,
    "/tokens": show_tokens,
    "/timeline": timeline,
    "/health": health,
    "/alarms": alarms_alone,
    "/status": status_alone,
}
"""What can be asked about a run, by the end of its path."""


def page_app(runs: ServedRuns, access: Access) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """The app. It must be served behind a `Guard` that lets a page of its own origin in."""
    watcher = Watcher(runs)

    async def login(request: Request) -> Response:
        body = b""
        # Whoever asks here has no key yet, so little of it is kept.
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_LOGIN_BYTES:
                raise RefusedError("this is no key", remedy="send the key and nothing else", status=413)
        return access.trade(request, body.decode("ascii", "replace").strip())

    async def all_runs(request: Request) -> Response:
        access.check(request)
        return json_answer(await asyncio.to_thread(list_runs, runs))

    async def live(request: Request) -> Response:
        access.check(request)
        return event_stream(watcher, request.query_params.getlist("run"))

    async def shell(request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    def of_a_run(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            access.check(request)
            return await asyncio.to_thread(answered, request)

        def answered(request: Request) -> Response:
            view = runs.view(request.path_params["run"])
            try:
                return json_answer(answer(view, Asked(request.query_params)))
            except OSError as error:
                remedy = "check its permissions, and try again"
                raise RefusedError(f"a file of this run cannot be read: {error}", remedy=remedy, status=404) from error

        return endpoint

    async def nothing(request: Request) -> Response:
        raise RefusedError(f"there is nothing at {request.url.path[:200]}", remedy="begin at /", status=404)

    routes = [
        Route("/health", lambda request: Response(status_code=200)),
        Route("/api/login", login, methods=["POST"]),
        Route("/api/runs", all_runs),
        Route("/api/events", live),
        *(Route(f"/api/runs/{{run}}{end}", of_a_run(answer)) for end, answer in OF_A_RUN.items()),
        Route("/api/{rest:path}", nothing),
        Mount("/static", _Static(directory=STATIC)),
        Route("/{rest:path}", shell),
    ]
    return _with_headers(Starlette(routes=routes, exception_handlers={LoopwrightError: _refuse}))


class _Static(StaticFiles):
    """Files of the page. Browsers ask each time whether one has changed, so that an upgrade is seen at once."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["cache-control"] = "no-cache"
        return response


async def _refuse(request: Request, error: Exception) -> Response:
    status = error.facts.get("status", 404) if isinstance(error, LoopwrightError) else 500
    body = error_body(error) if isinstance(error, LoopwrightError) else {}
    response = json_answer(body)
    response.status_code = status
    response.headers.update(NO_STORE)
    return response


def _with_headers(app: Starlette) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        await app(scope, receive, sending)

    return served
