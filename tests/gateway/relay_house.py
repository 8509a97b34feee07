"""A gateway with a relay on the loopback, and workers that dial it, all in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
import pytest
from gateway_house import KEY
from websockets.asyncio.client import ClientConnection, connect

from loopwright.build import Relayed, relay, serve_gateway
from loopwright.build.relay import OfferedEngine
from loopwright.engines.http.model_card import ModelCard
from loopwright.errors import EngineLostError, ModelError
from loopwright.gateway.relay.dialer import Dial, keep_dialled
from loopwright.gateway.relay.frames import RelayFrame, frame_in
from loopwright.gateway.server import Address, Gateway
from loopwright.gateway.session import SessionSettings
from loopwright.ports import OnPart
from loopwright.testing import ScriptedEngine
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import FinishReason, GenerateRequest, Generation, Sampling, Thinking

MAX_CONTEXT = 4096
LONGEST = 600
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


@cache
def tokenizer_folder() -> Path:
    folder = Path(mkdtemp(prefix="loopwright-tokenizer-")) / "tiny"
    tiny_tokenizer().save_pretrained(folder)
    return folder


class LetterEngine(ScriptedEngine):
    """The token at position p of a stream is p modulo 90 and more, so it has a text, and depends on nothing else. Each
    takes `pace` seconds. When the engine is dead, nobody reaches it any more."""

    def __init__(self, *, version: int = 0, pace: float = 0.0) -> None:
        super().__init__(_letters, seconds=(lambda request: pace * LONGEST) if pace else None, version=version)
        self.dead = False
        self.counted = 0

    @property
    def is_idle(self) -> bool:
        return not self._live

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        def tell(part: Generation) -> None:
            self.check_alive()
            self.counted += 1
            if on_part is not None:
                on_part(part)

        self.check_alive()
        return await super().generate(request, tell)

    def check_alive(self) -> None:
        if self.dead:
            raise EngineLostError("the engine is dead", remedy="none: the test killed it")


def _letters(request: GenerateRequest) -> tuple[int, ...]:
    start = len(request.prompt_ids)
    return letters(start, LONGEST)


def letters(start: int, count: int) -> tuple[int, ...]:
    return tuple(position % 90 + 100 for position in range(start, start + count))


@dataclass
class WorkerHere:
    """A worker that is dialled in, or tries to."""

    name: str
    engine: Any
    dialling: asyncio.Task[None]
    connections: int = 0

    async def end(self) -> None:
        self.dialling.cancel()
        await asyncio.wait((self.dialling,))


@dataclass(frozen=True)
class RelayHouse:
    """A gateway with a relay."""

    gateway: Gateway
    http: httpx.AsyncClient
    workers: list[WorkerHere]

    @property
    def url(self) -> str:
        return self.gateway.own_url

    async def worker(
        self,
        name: str,
        engine: Any = None,
        *,
        source: str | None = None,
        max_context: int = MAX_CONTEXT,
        key: str = KEY,
        wait: bool = True,
        url: str | None = None,
        digest: str | None = None,
    ) -> WorkerHere:
        card = ModelCard(source or str(tokenizer_folder()), max_context)

        engine = engine or LetterEngine()

        async def card_here() -> ModelCard:
            if isinstance(engine, LetterEngine):
                engine.check_alive()
            return card

        offered = OfferedEngine(engine, name, card_here, digest=digest)

        def connected() -> None:
            made.connections += 1

        dial = Dial(url or self.url, key, await offered.app(), offered.hello, offered.gone, connected)
        made = WorkerHere(name, engine, asyncio.create_task(keep_dialled(dial)))
        self.workers.append(made)
        if wait:
            await until(lambda: made.connections or made.dialling.done())
            if made.dialling.done():
                made.dialling.result()
        return made

    def session(self, id: str, **settings: Any) -> str:
        self.gateway.sessions.create(id, SessionSettings(**settings))
        return id

    async def chat(self, session: str, **more: Any) -> httpx.Response:
        return await self.http.post(f"/{session}/v1/chat/completions", json={**ASK, **more})

    async def generate(self, id: str, tokens: int, prompt: int = 5, on_part: OnPart | None = None) -> Generation:
        """Ask past the sessions."""
        served = await self.gateway.exchange.offer.ready()
        request = GenerateRequest(id, tuple(range(prompt)), Sampling(max_new_tokens=tokens), part_tokens=1)
        return await served.engine.generate(request, on_part)

    @asynccontextmanager
    async def socket(self, key: str = KEY, path: str = "/relay", **options: Any) -> AsyncIterator[ClientConnection]:
        """A connection without a worker behind it."""
        url = "ws" + self.url.removeprefix("http") + path
        headers = {"authorization": f"Bearer {key}"}
        async with connect(url, additional_headers=headers, proxy=None, close_timeout=0.1, **options) as socket:
            yield socket


@asynccontextmanager
async def relay_house(
    folder: Path, *, model: str | None = None, wait_seconds: float = 10.0, port: int = 0
) -> AsyncIterator[RelayHouse]:
    with pytest.MonkeyPatch.context() as patched:
        # A tokenizer is loaded with the help of a process, which takes seconds.
        patched.setattr(relay, "tokenizer_of", _tokenizer)
        async with _open(folder, model, wait_seconds, port) as house:
            yield house


def _tokenizer(source: str, cache: Path) -> Any:
    if not source.endswith("tiny"):
        raise ModelError(f"there is no tokenizer at {source}", remedy="none: the test wants it so")
    return tiny_tokenizer()


@asynccontextmanager
async def _open(folder: Path, model: str | None, wait_seconds: float, port: int) -> AsyncIterator[RelayHouse]:
    behind = Relayed(folder, model, wait_seconds)
    options: dict[str, Any] = {"key": KEY, "renderer": "auto", "thinking": Thinking.KEEP}
    async with (
        serve_gateway(behind, Address(port=port), store=folder / "sessions.sqlite", **options) as gateway,
        httpx.AsyncClient(
            base_url=gateway.own_url, headers={"authorization": f"Bearer {KEY}"}, timeout=30, trust_env=False
        ) as http,
    ):
        house = RelayHouse(gateway, http, [])
        try:
            yield house
        finally:
            for one in house.workers:
                await one.end()


def counted(generation: Generation, tokens: int, prompt: int = 5) -> bool:
    """Every token once, in its place."""
    return generation.ids == letters(prompt, tokens) and generation.finish is FinishReason.LENGTH


async def received(socket: ClientConnection) -> RelayFrame:
    async with asyncio.timeout(10):
        return frame_in(await socket.recv())


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.002)


class Cable:
    """Passes bytes on to a server, until it is cut. Whoever connects later gets a new piece of it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[Cable]:
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, there}
        try:
            await asyncio.gather(_copy(reader, there), _copy(there_reader, writer))
        finally:
            for one in (writer, there):
                one.transport.abort()
                self._writers.discard(one)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    writer.transport.abort()
