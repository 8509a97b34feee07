"""The same gateway as `loopwright gateway --engine URL`, with sessions in memory. The difference is what the store on
disk adds."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from loopwright.build.remote import RemoteEngine, connected
from loopwright.cli.event_loop import run_server, settle_down
from loopwright.gateway.offer import Served
from loopwright.gateway.server import open_gateway
from loopwright.gateway.store import MemoryStore
from loopwright.render.choose import make_renderer


async def main() -> None:
    told = json.loads(sys.stdin.readline())
    remote = RemoteEngine(f"http://127.0.0.1:{told['upstream']}", None, None, Path(told["folder"]))
    async with connected(remote) as (engine, model):
        served = Served(engine, make_renderer(model.tokenizer), model.max_context, model.name)
        async with open_gateway(served, MemoryStore(), key=told["key"], held=engine.held_seconds) as gateway:
            settle_down()
            print(json.dumps({"port": gateway.port}), flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    run_server(main())
