"""Tells open pages what has changed, as server-sent events. One stream per page, and one look per second at each run.

An event says that there is something new, and where; the page asks for what it shows. So a page that was away misses
nothing, and a run that nobody looks at costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from starlette.responses import StreamingResponse

from loopwright.errors import LoopwrightError, RefusedError
from loopwright.ui.run_answers import is_alive
from loopwright.ui.served import ServedRuns

LOOK_SECONDS = 1.0
BEAT_SECONDS = 15.0
MOST_RUNS = 12


class Watcher:
    """Looks at runs for those who listen."""

    def __init__(self, runs: ServedRuns, look_seconds: float = LOOK_SECONDS) -> None:
        self._runs = runs
        self.look_seconds = look_seconds
        self._seen: dict[str, tuple[float, dict[str, Any]]] = {}

    async def look(self, name: str) -> dict[str, Any]:
        """What is known of a run. Several pages that ask within a second share one look."""
        now = asyncio.get_running_loop().time()
        at, seen = self._seen.get(name, (-1e9, {}))
        if now - at >= self.look_seconds * 0.9:
            seen = await asyncio.to_thread(self._look, name)
            self._seen[name] = now, seen
            for other in [one for one, (when, _) in self._seen.items() if now - when > 60]:
                del self._seen[other]
        return seen

    def _look(self, name: str) -> dict[str, Any]:
        try:
            view = self._runs.view(name)
            return {"run": name, "gone": False, "alive": is_alive(view), "told": view.told_at(), **view.progress()}
        except (LoopwrightError, OSError) as error:
            return {"run": name, "gone": True, "why": str(error).splitlines()[0]}


def event_stream(watcher: Watcher, names: Sequence[str]) -> StreamingResponse:
    if len(names) > MOST_RUNS:
        raise RefusedError("too many runs for one stream", remedy=f"listen to at most {MOST_RUNS}", status=400)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_events(watcher, names), media_type="text/event-stream", headers=headers)


async def _events(watcher: Watcher, names: Sequence[str]) -> AsyncIterator[bytes]:
    told: dict[str, dict[str, Any]] = {}
    quiet = 0.0
    yield b"retry: 2000\n\n"
    while True:
        for name in names:
            seen = await watcher.look(name)
            if told.get(name) != seen:
                told[name] = seen
                quiet = 0.0
                yield b"event: run\ndata: " + orjson.dumps(seen) + b"\n\n"
        await asyncio.sleep(watcher.look_seconds)
        quiet += watcher.look_seconds
        if quiet >= BEAT_SECONDS:
            quiet = 0.0
            yield b": still here\n\n"
