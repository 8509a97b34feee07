"""One round: `loopwright ui` in a process of its own, one visit by Chromium, and one client that only listens."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.large_run import metrics_line, size_of
from benchmarks.workers.port import Port

ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TICKS = os.sysconf("SC_CLK_TCK")
LINE_SECONDS = 2.0


def main(port: Port) -> None:
    port.ready("loopwright")
    for watch in port.rounds():
        answer = asyncio.run(_measured(port.spec))
        port.answer(watch.stop(), **answer)


async def _measured(spec: dict[str, Any]) -> dict[str, Any]:
    run = Path(spec["run"])
    with _served(run, Path(spec["folder"])) as (server, url, key):
        usable, largest = await _visit(url, key, spec)
        return {
            "usable": usable,
            "largest_answer": largest,
            "stream_share": await _listening(server, url, key, run, spec["stream_seconds"]),
            "server_memory": _peak_memory(server),
            "run_bytes": size_of(run),
        }


@contextmanager
def _served(run: Path, folder: Path) -> Iterator[tuple[int, str, str]]:
    """The server's process, its address and its key."""
    key = folder / "page.key"
    if not key.exists():
        key.touch(mode=0o600)
        key.write_text("lwk_a-key-of-the-benchmark-of-the-page\n")
    command = [sys.executable, "-m", "loopwright.cli", "ui", str(run), "--key-file", str(key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = process.stdout.readline() if process.stdout else ""
            found = re.search(r"http://\S+/", said)
            if found is None:
                raise RuntimeError("the server did not start")
            yield process.pid, found[0].rstrip("/"), key.read_text().strip()
        finally:
            process.terminate()


async def _visit(url: str, key: str, spec: dict[str, Any]) -> tuple[dict[str, float], int]:
    """When each view was usable, and the bytes of the largest answer."""
    from playwright.async_api import async_playwright

    name = quote(Path(spec["run"]).name)
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    found: dict[str, float] = {}
    sizes = [0]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(ARGS))
        page = await browser.new_page()
        page.set_default_timeout(60_000)
        page.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length", 0))))

        async def timed(what: str, where: str, until: str) -> None:
            started = time.perf_counter()
            await page.goto(f"{url}{where}")
            await page.locator(until).first.wait_for()
            found[what] = time.perf_counter() - started

        await timed("first_view", f"/#key={key}", ".chart canvas")
        await timed("step", f"/run/{name}/step/{spec['step']}", ".group .chip")
        trajectory = f"/run/{name}/rollout/{spec['long']}"
        await timed("trajectory", trajectory, ".message")
        await timed("tokens", f"{trajectory}?view=tokens&from=50000", ".tokens span")
        await timed("search", f"/run/{name}/steps?q=apples", "main section td a")
        await timed("search_old", f"/run/{name}/steps?q={quote(spec['only'])}", "main section td a")
        await timed("health", f"/run/{name}/health", "main table")
        await browser.close()
    return found, max(sizes)


async def _listening(server: int, url: str, key: str, run: Path, seconds: float) -> float:
    """The server's CPU time, as a share of one core, while one client listens and the run grows."""
    import httpx

    metrics = run / "metrics.jsonl"
    size = metrics.stat().st_size
    events = f"{url}/api/events?run={quote(run.name)}"
    try:
        async with (
            httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=60) as client,
            client.stream("GET", events) as stream,
            asyncio.TaskGroup() as tasks,
        ):
            reader = tasks.create_task(_read(stream))
            await asyncio.sleep(2)
            started, before = time.perf_counter(), _cpu_seconds(server)
            for number in range(max(1, int(seconds / LINE_SECONDS))):
                await asyncio.sleep(LINE_SECONDS)
                with metrics.open("a") as file:
                    file.write(json.dumps(metrics_line(10_000 + number, 1000)) + "\n")
            share = (_cpu_seconds(server) - before) / (time.perf_counter() - started)
            reader.cancel()
    finally:
        os.truncate(metrics, size)
    return share


async def _read(stream: Any) -> None:
    async for _ in stream.aiter_bytes():
        pass


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _peak_memory(process: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return 1024.0 * int(found[1]) if found else 0.0


if __name__ == "__main__":
    main(Port())
