"""A scripted engine, asked directly and through `loopwright worker`, which has dialled a gateway in this process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.workers.port import Port
from benchmarks.workers.proxy_round import STARTING_SECONDS, child, end
from loopwright.build import Relayed, serve_gateway
from loopwright.engines.http.client import HttpEngine
from loopwright.gateway.server import Address
from loopwright.ports import OnPart, StreamingEngine
from loopwright.serve.keys import new_key
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import GenerateRequest, Generation, Sampling, Thinking

MAX_CONTEXT = 4096


def _unheard(part: Generation) -> None:
    """It is streamed, and nobody needs it before its end."""


UNHEARD: OnPart = _unheard


@asynccontextmanager
async def _worker(url: str, key: str, engine: str) -> AsyncIterator[None]:
    command = [sys.executable, "-m", "loopwright.cli", "worker", "--gateway", url, "--engine", engine]
    env = {**os.environ, "LOOPWRIGHT_GATEWAY_KEY": key}
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=env)
    try:
        if process.stdout is None:
            raise RuntimeError("a worker is started with a pipe")
        async with asyncio.timeout(STARTING_SECONDS):
            if not await process.stdout.readline():
                raise RuntimeError("the worker did not start")
        yield
    finally:
        await end(process)


@asynccontextmanager
async def _both(spec: dict[str, Any]) -> AsyncIterator[tuple[StreamingEngine, StreamingEngine]]:
    """The engine itself, and the same one behind the relay."""
    folder, key = Path(spec["folder"]), new_key()
    tiny_tokenizer().save_pretrained(folder / "tiny")
    script = folder / "script.json"
    script.write_text(json.dumps({"model": "tiny", "max_context": MAX_CONTEXT, "replies": [{"say": "19 " * 400}]}))
    behind, store = Relayed(folder), folder / "sessions.sqlite"
    serving = serve_gateway(behind, Address(), store=store, key=key, renderer="auto", thinking=Thinking.KEEP)
    async with (
        child([sys.executable, "-m", "loopwright.testing.scripted_server", str(script)]) as server,
        serving as gateway,
        _worker(gateway.own_url, key, f"http://127.0.0.1:{server.port}"),
        HttpEngine.connect(f"http://127.0.0.1:{server.port}", None) as direct,
    ):
        yield direct, gateway.exchange.offer.current().engine


async def measure(direct: StreamingEngine, relay: StreamingEngine, spec: dict[str, Any]) -> dict[str, Any]:
    """One round."""
    answer: dict[str, Any] = {"direct": [], "relay": []}
    for number in range(spec["calls"]):
        for name, engine in (("direct", direct), ("relay", relay)):
            started = time.perf_counter()
            await _ask(engine, number, spec)
            answer[name].append(time.perf_counter() - started)
    for name, engine in (("direct", direct), ("relay", relay)):
        numbers, started = iter(range(spec["crowd"])), time.perf_counter()

        async def work(engine: StreamingEngine = engine, numbers: Any = numbers) -> None:
            for number in numbers:
                await _ask(engine, number, spec)

        async with asyncio.TaskGroup() as group:
            for _ in range(spec["in_flight"]):
                group.create_task(work())
        answer[f"{name}_rate"] = spec["crowd"] / (time.perf_counter() - started)
    return answer


async def _ask(engine: StreamingEngine, number: int, spec: dict[str, Any]) -> None:
    sampling = Sampling(max_new_tokens=spec["answer_tokens"], seed=number)
    request = GenerateRequest(f"s{number % spec['in_flight']}/{number}", (65,) * spec["prompt_tokens"], sampling)
    got = await engine.generate(request, UNHEARD)
    if len(got.ids) != spec["answer_tokens"]:
        raise RuntimeError(f"an answer has {len(got.ids)} tokens")


async def main(port: Port) -> None:
    async with _both(port.spec) as (direct, relay):
        port.ready("loopwright", "websockets")
        while (watch := await asyncio.to_thread(port.next_round)) is not None:
            answer = await measure(direct, relay, port.spec)
            port.answer(watch.stop(), **answer)


if __name__ == "__main__":
    asyncio.run(main(Port()))
