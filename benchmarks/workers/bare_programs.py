"""The limit: the same programs, started by nothing but asyncio, and answered with bytes that were made beforehand.

The server is in the process that starts them, as the gateway is in a run.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.workers.framing import Messages, response_bytes
from benchmarks.workers.port import Port
from benchmarks.workers.program_round import program, run_programs


class Canned(Messages):
    """One program's connection. Every question has the same answer."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self._answer = answer

    def message(self, message: bytes) -> None:
        self.send(self._answer)


@asynccontextmanager
async def canned_model(answer: str) -> AsyncIterator[str]:
    """Serve the same answer to everybody, and give the base URL."""
    said = {"choices": [{"index": 0, "message": {"role": "assistant", "content": answer}}]}
    response = response_bytes(json.dumps(said).encode())
    server = await asyncio.get_running_loop().create_server(lambda: Canned(response), "127.0.0.1")
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def run_bare(command: Sequence[str], base_url: str) -> None:
    # In sessions of their own, as ours are: Linux shares the processor between sessions first.
    process = await asyncio.create_subprocess_exec(
        *command,
        env={"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none"},
        stdin=DEVNULL,
        stdout=DEVNULL,
        start_new_session=True,
    )
    if code := await process.wait():
        raise RuntimeError(f"the program ended with {code}; what it said is above")


async def main(port: Port) -> None:
    spec = port.spec
    command = program(spec["turns"], spec["question"])
    async with canned_model(spec["answer"]) as base_url:
        port.ready()
        for watch in port.rounds():
            facts = await run_programs(spec["programs"], spec["at_once"], lambda number: run_bare(command, base_url))
            port.answer(watch.stop(), **facts)


if __name__ == "__main__":
    asyncio.run(main(Port()))
