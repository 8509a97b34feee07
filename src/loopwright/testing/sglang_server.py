"""A fake of SGLang's HTTP server that samples with a real model, for tests of what talks to SGLang.

It follows SGLang 0.5.18 as its source describes it, and has not been compared with a running one. It computes with
transformers, one request after another, and keeps real keys and values: a prefix that was cached under other weights
gives logprobs that fit no version. Where an assertion or an exception ends SGLang's scheduler, the fake dies too: all
connections break, and new ones are refused.

In a test: `async with serve_sglang(folder) as server`, then `server.url`; `server.faults` makes it misbehave
(`loopwright.testing.sglang.faults`). As a process, which prints one line of JSON with its port when it is ready, and
ends with exit code 1 when the server dies:

    python -m loopwright.testing.sglang_server --model FOLDER [--host HOST] [--port PORT] [--key-file FILE]

There `POST /fake/faults` sets the faults.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from loopwright.models.compute import ComputeThread
from loopwright.models.tokenizer import load_tokenizer
from loopwright.serve.keys import read_key
from loopwright.serve.listen import listening
from loopwright.testing.sglang.doorway import open_doorway
from loopwright.testing.sglang.faults import Faults
from loopwright.testing.sglang.frontend import Frontend, Times
from loopwright.testing.sglang.keys import Keys
from loopwright.testing.sglang.model import KvModel
from loopwright.testing.sglang.radix import RadixTree
from loopwright.testing.sglang.routes import Routes
from loopwright.testing.sglang.scheduler import Scheduler, ServerSizes
from loopwright.testing.sglang.updates import Updates

QUICK = Times(abort_again=0.01, look_for_caller=0.05, abort_after_stream=0.1, health=0.01, health_limit=1.0)
"""SGLang's times, made shorter for tests."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the server is started, by SGLang's own names. `max_total_tokens` is the room of its cache.
    `return_original_logprob` is SGLANG_RETURN_ORIGINAL_LOGPROB: logprobs before temperature."""

    api_key: str | None = None
    admin_api_key: str | None = None
    weight_version: str = "default"
    disable_radix_cache: bool = False
    incremental_streaming_output: bool = False
    enable_memory_saver: bool = False
    max_running_requests: int = 256
    max_total_tokens: int = 1 << 20
    return_original_logprob: bool = False
    dp_size: int = 1


class SglangServer:
    """A running server. `dead` is set when it has died, and `died_of` says why. `scheduler` shows what it holds."""

    def __init__(self, url: str, faults: Faults, frontend: Frontend, scheduler: Scheduler, dead: asyncio.Event) -> None:
        self.url = url
        self.faults = faults
        self.scheduler = scheduler
        self._frontend = frontend
        self.dead = dead
        self.died_of: BaseException | None = None

    @property
    def names(self) -> Set[str]:
        """The requests that have not ended, also those that are parked by a pause."""
        return self._frontend.names

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@asynccontextmanager
async def serve_sglang(
    folder: Path | str,
    options: Options | None = None,
    *,
    times: Times = QUICK,
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncIterator[SglangServer]:
    """Serve the model of a folder."""
    options = options or Options()
    faults, path = Faults(), str(folder)
    with ComputeThread() as compute:
        model = await compute.run(KvModel, path)
        tokenizer = load_tokenizer(path)
        sizes = ServerSizes(
            model.config.max_position_embeddings, options.max_total_tokens, options.max_running_requests
        )
        tree = RadixTree(enabled=not options.disable_radix_cache)
        frontend = Frontend(
            tokenizer,
            path,
            options.weight_version,
            times,
            faults,
            incremental=options.incremental_streaming_output,
        )
        raw = options.return_original_logprob
        scheduler = Scheduler(model, tree, tokenizer, compute, sizes, frontend.tell, faults, raw_logprobs=raw)
        updates = Updates(scheduler, faults, memory_saver=options.enable_memory_saver)
        frontend.connect(scheduler, updates)
        info = {
            "model_path": path,
            "tokenizer_path": path,
            "context_length": sizes.context,
            "weight_version": options.weight_version,
            "disable_radix_cache": options.disable_radix_cache,
            "incremental_streaming_output": options.incremental_streaming_output,
            "max_running_requests": sizes.running,
            "tp_size": 1,
            "dp_size": options.dp_size,
        }
        routes = Routes(frontend, scheduler, updates, faults, info)
        keys = Keys(routes.app(), options.api_key, options.admin_api_key, faults)
        dead = asyncio.Event()
        # The key is checked by the app itself, because SGLang has two of them; the guard only wants one to exist.
        key = options.api_key or options.admin_api_key
        async with (
            listening(_UntilDead(keys, dead), key=key, own_keys=True) as inner,
            open_doorway(inner, host, port) as (doorway, bound),
        ):
            server = SglangServer(f"http://{host}:{bound}", faults, frontend, scheduler, dead)

            async def run() -> None:
                try:
                    await scheduler.run()
                except Exception as error:
                    server.died_of = error
                    doorway.shut()
                    dead.set()

            computing = asyncio.create_task(run(), name="SGLang's scheduler")
            try:
                yield server
            finally:
                computing.cancel()
                await asyncio.gather(computing, return_exceptions=True)
                dead.set()


class _UntilDead:
    """Ends every request when the server dies: nobody can hear its answer any more."""

    def __init__(self, app: ASGIApp, dead: asyncio.Event) -> None:
        self._app, self._dead = app, dead

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.ensure_future(self._app(scope, receive, send))
        dying = asyncio.ensure_future(self._dead.wait())
        try:
            await asyncio.wait((answering, dying), return_when=asyncio.FIRST_COMPLETED)
        finally:
            dying.cancel()
            if not answering.done():
                answering.cancel()
                await asyncio.wait((answering,))
        if not answering.cancelled():
            answering.result()


async def _serve(folder: Path, options: Options, host: str, port: int) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve_sglang(folder, options, times=Times(), host=host, port=port) as server:
        print(json.dumps({"host": host, "port": server.port, "pid": os.getpid()}), flush=True)
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, server.dead)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return 1 if server.dead.is_set() else 0


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loopwright.testing.sglang_server")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key-file", type=Path)
    parser.add_argument("--disable-radix-cache", action="store_true")
    given = parser.parse_args()
    options = Options(
        api_key=read_key(given.key_file) if given.key_file else None, disable_radix_cache=given.disable_radix_cache
    )
    raise SystemExit(asyncio.run(_serve(given.model, options, given.host, given.port)))


if __name__ == "__main__":
    _main()
