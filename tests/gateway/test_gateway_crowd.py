"""Many agents at once: every call is answered, each conversation is one chain, and memory is given back at its end."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from gateway_house import KEY, House, RecordingEngine, house, odd_ids

from loopwright.core.chains import turns_of
from loopwright.engines.http.connection import Connections, Patience
from loopwright.gateway.session import SessionState
from loopwright.gateway.store import SqliteStore
from loopwright.types import ChainStart, GenerateRequest

TURNS = 10
QUESTION = "What is left to do in file number {}, and who has looked at it since the last change of the build?"
ANSWER = "File {} has {} open points. The first is a test that waits for a clock; nobody has looked at it since then."
MOST_KB_PER_SESSION = 150
MOST_KB_PER_ENDED = 5
CACHES_KB = 6000
"""What the renderer may remember, however many sessions there were."""


class Forgetful(RecordingEngine):
    """Keeps no log: what is measured is the gateway's memory."""

    async def generate(self, request: GenerateRequest, on_part: Any = None) -> Any:
        try:
            return await super().generate(request, on_part)
        finally:
            self.log.clear()
            self.requests.clear()


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Room for all connections. Agents share this process with the gateway: while it works, they cannot connect."""
    monkeypatch.setattr("loopwright.engines.http.connection.CONNECT_SECONDS", 600.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def converse(connections: Connections, session: str) -> None:
    """An agent: `TURNS` calls, each with the whole conversation so far."""
    messages: list[dict[str, str]] = [{"role": "system", "content": "You keep a list of open points."}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": QUESTION.format(turn)})
        body = orjson.dumps({"model": "m", "messages": messages})
        async with connections.ask("POST", f"/{session}/v1/chat/completions", body, Patience(600)) as answer:
            said = orjson.loads(await answer.read())
            assert answer.status == 200, said
        messages.append({"role": "assistant", "content": said["choices"][0]["message"]["content"]})


async def end_all(h: House, ids: list[str]) -> None:
    """Half of the sessions are completed, and the others' time runs out."""
    for id in ids[::2]:
        h.gateway.sessions.end(h.gateway.sessions.find(id))
    for id in ids[1::2]:
        h.gateway.sessions.find(id).used = 0.0
    h.gateway.sessions.end_idle()
    counts = h.gateway.sessions.counts()
    assert counts == {SessionState.COMPLETED: len(ids[::2]), SessionState.EXPIRED: len(ids[1::2])}


def held() -> int:
    """Bytes that Python and numpy hold now."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def crowd(sessions: int, folder: Path) -> str:
    """The whole story with so many sessions; gives what it took in words."""
    engine = Forgetful(lambda request: ANSWER.format(len(request.prompt_ids), len(request.id)), encode=odd_ids)
    async with SqliteStore(folder / "sessions.sqlite") as store, house([], engine=engine, store=store) as h:
        tracemalloc.start()
        try:
            before, started = held(), time.perf_counter()
            ids = [await h.session(f"session-{number:05}") for number in range(sessions)]
            connections = Connections(h.gateway.base_url, KEY)
            async with asyncio.TaskGroup() as agents:
                for id in ids:
                    agents.create_task(converse(connections, id))
            seconds = time.perf_counter() - started
            assert h.gateway.metrics.turns == sessions * TURNS
            for id in ids:
                assert h.recorder(id).starts == [ChainStart.FIRST]
            (chain,) = h.recorder(ids[-1]).chains()
            assert len(turns_of(chain)) == TURNS
            connections.close()
            grown = held() - before
            peak = tracemalloc.get_traced_memory()[1] - before
            await end_all(h, ids)
            # The server hears of closed connections in its own time, and lets go of them then.
            await asyncio.sleep(2.0)
            left = held() - before
        finally:
            tracemalloc.stop()
    took = (
        f"{sessions} sessions of {TURNS} turns ({len(chain.ids)} tokens each): {seconds:.1f} s, "
        f"peak {peak / 1e6:.1f} MB; {grown / sessions / 1e3:.1f} KB per open session, {left / 1e3:.0f} KB in the end"
    )
    assert grown < 1e3 * (CACHES_KB + MOST_KB_PER_SESSION * sessions), took
    assert left < 1e3 * (CACHES_KB + MOST_KB_PER_ENDED * sessions), took
    return took


@pytest.mark.real
@pytest.mark.usefixtures("crowded")
async def test_a_hundred_agents_at_once(tmp_path: Path) -> None:
    print(await crowd(100, tmp_path))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("crowded")
async def test_a_thousand_agents_at_once(tmp_path: Path) -> None:
    print(await crowd(1000, tmp_path))
