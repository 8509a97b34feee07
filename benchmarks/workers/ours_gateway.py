"""Loopwright's gateway as a user starts it: `loopwright gateway --engine URL`, every call logged before the engine is
asked, every turn recorded, and committed to SQLite before it is answered. Each client has a session; all are deleted
after a round. Beside it, the same gateway with sessions in memory: the difference is what the store on disk adds."""

from __future__ import annotations

import asyncio
import http.client
import json
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from benchmarks.workers.http_load import Door
from benchmarks.workers.port import Port
from benchmarks.workers.proxy_round import Child, Proxy, Spec, child, serve_rounds

SETTINGS = {"sampling": {"temperature": 1.0, "max_new_tokens": 1024}}
"""As in training: the session's settings override the client's."""


@asynccontextmanager
async def ours(spec: Spec, upstream: int) -> AsyncIterator[Proxy]:
    key = secrets.token_hex(16)
    store = Path(spec["folder"]) / "sessions.sqlite"
    command = [sys.executable, "-m", "loopwright.cli", "gateway", "--engine", f"http://127.0.0.1:{upstream}"]
    async with child([*command, "--store", str(store)], environment={"LOOPWRIGHT_GATEWAY_KEY": key}) as gateway:
        yield _proxy(gateway, key)


@asynccontextmanager
async def in_memory(spec: Spec, upstream: int) -> AsyncIterator[Proxy]:
    key = secrets.token_hex(16)
    told = {"upstream": upstream, "key": key, "folder": spec["folder"]}
    async with child([sys.executable, "-m", "benchmarks.workers.memory_gateway"], told) as gateway:
        yield _proxy(gateway, key)


def _proxy(gateway: Child, key: str) -> Proxy:
    async def doors(count: int) -> Sequence[Door]:
        return await asyncio.to_thread(_open_sessions, gateway.port, key, count)

    async def close(doors: Sequence[Door]) -> None:
        await asyncio.to_thread(_delete_sessions, gateway.port, key, doors)

    return Proxy(gateway.port, gateway.pid, doors, close)


def _open_sessions(port: int, key: str, count: int) -> list[Door]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as line:
        made = [_ask(line, "POST", "/sessions", key, SETTINGS) for _ in range(count)]
    paths = (f"/sessions/{session['id']}/v1/chat/completions" for session in made)
    return [Door(path, {"authorization": f"Bearer {one['key']}"}) for path, one in zip(paths, made, strict=True)]


def _delete_sessions(port: int, key: str, doors: Sequence[Door]) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as line:
        for door in doors:
            _ask(line, "DELETE", door.path.removesuffix("/v1/chat/completions"), key)


def _ask(line: http.client.HTTPConnection, method: str, path: str, key: str, body: Any = None) -> dict[str, Any]:
    line.request(method, path, json.dumps(body) if body else None, {"authorization": f"Bearer {key}"})
    answer = line.getresponse()
    read: dict[str, Any] = json.loads(answer.read())
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path} was answered with {read}")
    return read


if __name__ == "__main__":
    asyncio.run(serve_rounds(Port(), ours, "loopwright", beside=in_memory))
