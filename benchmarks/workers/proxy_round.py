"""One side of the gateway benchmark: the mock upstream, a proxy before it, and clients before both.

The clients run in this process, the upstream and the proxy in one of their own each. A round asks the upstream directly
and through the proxy, one after the other, so that a slow moment of the machine meets both. Only the standard library:
it also runs in the peer's environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.workers.http_load import Door, Pass, load
from benchmarks.workers.port import Port

GRACE_SECONDS = 5.0
STARTING_SECONDS = 180.0
DIRECT = Door("/v1/chat/completions")

Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that runs. `doors` opens as many as there are clients; `close` is told of them after a round."""

    port: int
    pid: int
    doors: Callable[[int], Awaitable[Sequence[Door]]]
    close: Callable[[Sequence[Door]], Awaitable[None]]


Start = Callable[[Spec, int], AbstractAsyncContextManager[Proxy]]
"""Starts a proxy before the upstream at a port."""


async def serve_rounds(port: Port, start: Start, *packages: str, beside: Start | None = None) -> None:
    """With `beside`, a second proxy is measured in each round, and its facts are in the answer under this name."""
    spec = port.spec
    bodies = cycle(_lines(spec["bodies"]))
    async with AsyncExitStack() as stack:
        mock = [sys.executable, "-m", "benchmarks.workers.mock_upstream"]
        upstream = await stack.enter_async_context(child(mock, spec["upstream"]))
        proxy = await stack.enter_async_context(start(spec, upstream.port))
        other = await stack.enter_async_context(beside(spec, upstream.port)) if beside else None
        port.ready(*packages)
        for watch in port.rounds():
            facts = await _round(spec, upstream.port, proxy, bodies)
            if other is not None:
                facts["beside"] = await _beside(spec, other, bodies)
            port.answer(watch.stop(), **facts)


def _lines(file: str) -> list[bytes]:
    return Path(file).read_bytes().splitlines()


async def _round(spec: Spec, upstream: int, proxy: Proxy, bodies: Iterator[bytes]) -> dict[str, Any]:
    seconds, (few, many) = spec["seconds"], spec["clients"]
    doors = await proxy.doors(many)
    direct_alone = await load(upstream, [DIRECT], bodies, seconds / 2)
    alone = await load(proxy.port, doors[:1], bodies, seconds)
    direct_few = await load(upstream, [DIRECT] * few, bodies, seconds / 2)
    together, cpu_ms = await _few(proxy, doors[:few], bodies, seconds)
    crowded = await load(proxy.port, doors, bodies, seconds)
    await proxy.close(doors)
    return {
        "direct_ms": _milliseconds(direct_alone),
        "alone_ms": _milliseconds(alone),
        "direct_rate": direct_few.rate,
        "rates": [together.rate, crowded.rate],
        "cpu_ms": cpu_ms,
        "proxy_memory": peak_memory(proxy.pid),
    }


async def _beside(spec: Spec, proxy: Proxy, bodies: Iterator[bytes]) -> dict[str, Any]:
    seconds, (few, _) = spec["seconds"], spec["clients"]
    doors = await proxy.doors(few)
    alone = await load(proxy.port, doors[:1], bodies, seconds)
    together, cpu_ms = await _few(proxy, doors, bodies, seconds)
    await proxy.close(doors)
    return {"alone_ms": _milliseconds(alone), "rate": together.rate, "cpu_ms": cpu_ms}


async def _few(proxy: Proxy, doors: Sequence[Door], bodies: Iterator[bytes], seconds: float) -> tuple[Pass, float]:
    """A pass, and the milliseconds of CPU that the proxy took for a request."""
    before = cpu_seconds(proxy.pid)
    measured = await load(proxy.port, doors, bodies, seconds)
    return measured, 1e3 * (cpu_seconds(proxy.pid) - before) / len(measured.latencies)


def _milliseconds(measured: Pass) -> dict[str, float]:
    return {"p50": 1e3 * measured.percentile(0.5), "p99": 1e3 * measured.percentile(0.99)}


@dataclass(frozen=True, slots=True)
class Child:
    """A process that listens."""

    port: int
    pid: int


@asynccontextmanager
async def child(
    command: Sequence[str], told: Any = None, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Child]:
    """Start a program that is told something in one line, and says its port in one line of JSON. It ends with us."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, env={**os.environ, **(environment or {})}
    )
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("a child is started with pipes")
    try:
        process.stdin.write(json.dumps(told).encode() + b"\n")
        async with asyncio.timeout(STARTING_SECONDS):
            line = await process.stdout.readline()
        if not line:
            raise RuntimeError(f"{command[-1]} did not start")
        yield Child(json.loads(line)["port"], process.pid)
    finally:
        await end(process)


async def end(process: asyncio.subprocess.Process) -> None:
    """By its input's end, by a signal, by force."""
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024


async def keep_open(doors: Sequence[Door]) -> None:
    """For proxies without sessions: there is nothing to close."""
