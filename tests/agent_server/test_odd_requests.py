"""Odd requests to an agent server: never a 500, never a crash, and nothing is opened by another trial's key."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopwright.agent_server.app import AgentServerApp, trial_key
from loopwright.agent_server.reading import Submission
from loopwright.agent_server.store import TrialStore
from loopwright.agent_server.trials import ServerLimits, Trials
from loopwright.ports import Endpoint
from loopwright.serve.guard import Guard
from loopwright.types import ProgramOutput, RolloutRequest, Scored

KEY = "the-servers-own-key"
GOOD: dict[str, Any] = {
    "runner": {"kind": "command", "command": ["sh", "-c", "true"], "stdin": "instruction", "env": {"A": "{task.id}"}},
    "reward": {"kind": "verifier", "command": ["true"], "scores": {"0": 1.0}, "path": "verdict"},
    "task": {"id": "t1", "messages": [{"role": "user", "content": "Hi"}], "truth": 1, "tools": [], "metadata": {}},
    "endpoint": {"base_url": "u", "api_key": "k", "anthropic_url": "u", "model": "m"},
    "variables": {"V": "w"},
    "grades_failures": False,
    "label": "run",
}
HARBOR = GOOD | {
    "runner": {
        "kind": "harbor",
        "python": "python",
        "agent": "oracle",
        "root": "tasks",
        "folder": "{config}/{task.id}",
        "agent_args": {"a": [1]},
        "environment_args": {"b": {}},
        "timeout_multiplier": 2.0,
        "pass_env": ["V"],
    },
    "reward": None,
    "grades": False,
}
REFUSALS = {400, 401, 404, 405, 409, 410, 413, 415, 429, 503}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


class NoProgram:
    """A runner whose programs do nothing."""

    name = "nothing"
    output = ProgramOutput("nothing", "", 0)

    @asynccontextmanager
    async def prepared(self, request: RolloutRequest):
        yield self

    async def run(self, endpoint: Endpoint, begun: Callable[[], None] = lambda: None) -> None:
        await asyncio.sleep(0)

    async def reward(self, *, out_of_time: bool = False) -> Scored:
        return Scored(1.0)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, inner in inside for place in places(inner, (*at, key)))]


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A good trial in which one or two places hold something else, or are gone; or no JSON at all."""
    body: Any = copy.deepcopy(draw(st.sampled_from([GOOD, HARBOR])))
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=60))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.sampled_from(places(body)))
        if not place:
            body = draw(json_values)
            break
        holder = body
        for key in place[:-1]:
            holder = holder[key]
        if draw(st.booleans()) and isinstance(holder, dict):
            del holder[place[-1]]
        else:
            holder[place[-1]] = draw(json_values)
    return json.dumps(body).encode()


ids = st.sampled_from(["trial-01", "trial-02", "short", "x" * 65, "tri%2fal-1", "trial 0001", "..", "käse-0001"])
paths = st.one_of(
    ids.map(lambda id: f"/trials/{id}"),
    st.tuples(ids, st.sampled_from(["stop", "cancel", "result", "other"])).map(
        lambda two: f"/trials/{two[0]}/{two[1]}"
    ),
    st.sampled_from(
        ["/", "/health", "/load", "/drain", "/metrics", "/trials", "/trials/", "//trials//trial-01", "/x/y/z"]
    ),
    st.text(max_size=12).map(lambda text: f"/{text}"),
).filter(lambda path: "events" not in path)
requests = st.tuples(
    st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "PATCH", "ODD"]),
    paths,
    st.sampled_from(
        [b"", b"after=run&seconds=0", b"after=x", b"seconds=nan&after=run", b"all=1", b"seconds=1e99", b"\xff="]
    ),
    bodies(),
    st.sampled_from([None, None, b"gzip", b"deflate", b"br"]),
)


async def ask(app: Any, method: str, path: str, query: bytes, body: bytes, headers: Mapping[bytes, bytes]) -> int:
    status, told = 0, [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if not told:
            await asyncio.Event().wait()
        return told.pop()

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": list(headers.items())}
    await asyncio.wait_for(app(scope, receive, send), 30)
    return status


def check(folder: Path, request: tuple[str, str, bytes, bytes, bytes | None]) -> None:
    method, path, query, body, encoding = request

    async def run() -> None:
        with suppress(FileNotFoundError):
            (folder / "trials.sqlite").unlink()
        with TrialStore(folder / "trials.sqlite") as store:

            def make(submission: Submission) -> Any:
                return NoProgram()

            trials = Trials(store, make, ServerLimits(2, 2))
            app = AgentServerApp(trials, key=KEY)
            guarded = Guard(app, key=None, hosts=None, refuse=app.refuse)
            also = {} if encoding is None else {b"content-encoding": encoding}

            def with_key(key: str) -> dict[bytes, bytes]:
                return {b"authorization": f"Bearer {key}".encode(), **also}

            for key in ("wrong", trial_key(KEY, "trial-99")):
                refused = await ask(guarded, method, path, query, body, with_key(key))
                assert refused == 401 or path.strip("/") == "health", (refused, request)
                assert not trials.load().running + trials.load().queued
                assert store.latest() == []
            status = await ask(guarded, method, path, query, body, with_key(KEY))
            assert status in REFUSALS | {200, 201}, (status, request)
            trials.draining = False
            for id, sound in (("trial-77", GOOD), ("trial-78", HARBOR)):
                good = await ask(guarded, "POST", f"/trials/{id}", b"", json.dumps(sound).encode(), with_key(KEY))
                assert good in ((201,) if encoding is None else (400, 415)), good
            await trials.close()

    asyncio.run(run())


SUPPRESSED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@settings(max_examples=150, deadline=None, suppress_health_check=SUPPRESSED)
@given(request=requests)
def test_mutated_requests_are_answered_or_refused(
    tmp_path: Path, request: tuple[str, str, bytes, bytes, bytes | None]
) -> None:
    check(tmp_path, request)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=5000, deadline=None, suppress_health_check=SUPPRESSED)
@given(request=requests)
def test_five_thousand_mutated_requests(tmp_path: Path, request: tuple[str, str, bytes, bytes, bytes | None]) -> None:
    check(tmp_path, request)
