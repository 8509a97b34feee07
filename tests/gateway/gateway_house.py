"""A gateway on the loopback over a scripted engine that speaks real tokens, and the check that every test ends with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from loopwright.core.chains import turns_of
from loopwright.engines.restartable import RestartableEngine
from loopwright.gateway.exchange import Exchange
from loopwright.gateway.metrics import Metrics
from loopwright.gateway.offer import Offer, Served
from loopwright.gateway.server import Address, Gateway, gateway_app, open_gateway
from loopwright.gateway.session import SessionSettings, never_held
from loopwright.gateway.sessions import Sessions
from loopwright.gateway.store import MemoryStore, SessionStore
from loopwright.ports import OnPart, StreamingEngine
from loopwright.render.chat_template import ChatTemplateRenderer
from loopwright.render.recording.recorder import Recorder
from loopwright.testing import ScriptedEngine
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import GenerateRequest, Generation, TokenChain

KEY = "the-gateways-own-key"
MAX_CONTEXT = 4096

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
ADD_ANTHROPIC = {
    "name": "add",
    "description": ADD["function"]["description"],
    "input_schema": ADD["function"]["parameters"],
}
ADD_RESPONSES = {"type": "function", **ADD["function"], "strict": False}

ADD_GEMINI = {**ADD["function"], "parametersJsonSchema": ADD["function"]["parameters"], "parameters": None}


@cache
def renderer() -> ChatTemplateRenderer:
    return ChatTemplateRenderer(tiny_tokenizer())


@cache
def _vocabulary() -> tuple[dict[str, int], int]:
    tokenizer = tiny_tokenizer()
    return tokenizer.get_vocab(), tokenizer.eos_token_id


def odd_ids(text: str) -> tuple[int, ...]:
    """The text byte by byte, and the end of the turn: no tokenizer would write it so, but a model may."""
    from loopwright.render.bytes import BYTES

    vocabulary, end = _vocabulary()
    letters = {byte: letter for letter, byte in BYTES.items()}
    return (*(vocabulary[letters[byte]] for byte in text.encode()), end)


def call_text(name: str, arguments: str) -> str:
    """A tool call as the model writes it, with spaces of its own."""
    return f'<tool_call>\n{{"name": "{name}",  "arguments": {arguments}}}\n</tool_call>'


class RecordingEngine(ScriptedEngine):
    """Keeps what it was asked and what it answered."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log: list[tuple[GenerateRequest, Generation]] = []

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        generation = await super().generate(request, on_part)
        self.log.append((request, generation))
        return generation


Answers = Callable[[GenerateRequest], str] | Sequence[str]


@dataclass(frozen=True)
class House:
    """A gateway that is open, and how to talk to it."""

    gateway: Gateway
    engine: RecordingEngine
    http: httpx.AsyncClient

    @asynccontextmanager
    async def openai(self, session: str, **options: Any) -> AsyncIterator[AsyncOpenAI]:
        url = f"{self.gateway.base_url}/sessions/{session}/v1"
        async with AsyncOpenAI(base_url=url, api_key=KEY, **options) as client:
            yield client

    @asynccontextmanager
    async def anthropic(self, session: str, **options: Any) -> AsyncIterator[AsyncAnthropic]:
        url = f"{self.gateway.base_url}/sessions/{session}"
        async with AsyncAnthropic(base_url=url, api_key=KEY, **options) as client:
            yield client

    async def session(self, id: str = "session-1", **settings: Any) -> str:
        made, _ = self.gateway.sessions.create(id, SessionSettings(**settings))
        return made.id

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return await self.http.post(path, json=body, headers=headers)

    async def chat(self, session: str, messages: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        """A chat completion without an SDK; gives the reply's message."""
        response = await self.post(f"/{session}/v1/chat/completions", {"messages": messages, **more})
        response.raise_for_status()
        return dict(response.json()["choices"][0]["message"])

    def recorder(self, session: str = "session-1") -> Recorder:
        return self.gateway.sessions.find(session).recorder

    def chains(self, session: str = "session-1") -> tuple[TokenChain, ...]:
        """The session's chains, after T1, T2 and T7 were checked against what the engine received and sampled."""
        return checked_chains(self.recorder(session), self.engine, session)


def checked_chains(recorder: Recorder, engine: RecordingEngine, session: str) -> tuple[TokenChain, ...]:
    """The chains, if what is trained in them is what the engine sampled after the prompts that it received."""
    chains = recorder.chains()
    committed = {turn.answer for turn in recorder.turns}
    wanted = sorted(
        (request.prompt_ids, generation.ids)
        for request, generation in engine.log
        if request.id.startswith(f"{session}/") and request.id.split("/")[1] in committed
    )
    assert sorted((turn.prompt_ids, turn.ids) for chain in chains for turn in turns_of(chain)) == wanted
    return chains


@asynccontextmanager
async def house(
    answers: Answers,
    *,
    store: SessionStore | None = None,
    max_context: int = MAX_CONTEXT,
    engine: RecordingEngine | None = None,
    wait_seconds: float | None = None,
    name: str = "tiny",
    address: Address | None = None,
    held: Callable[[], float] = never_held,
    **options: Any,
) -> AsyncIterator[House]:
    """With `wait_seconds`, calls wait so long for an engine that was lost, and this waiting counts as held."""
    engine = engine or RecordingEngine(answers, encode=odd_ids, **options)
    asked: StreamingEngine = engine
    if wait_seconds is not None:
        asked = restartable = RestartableEngine(engine, wait_seconds)
        held = restartable.held_seconds
    served = Served(asked, renderer(), max_context, name)
    async with open_gateway(
        served, store or MemoryStore(), key=KEY, address=address or Address(), held=held
    ) as gateway:
        headers = {"authorization": f"Bearer {KEY}"}
        here = f"http://127.0.0.1:{gateway.port}"
        async with httpx.AsyncClient(base_url=here, headers=headers, timeout=30) as http:
            yield House(gateway, engine, http)


class Desk:
    """The gateway's app, asked without a network."""

    def __init__(self, answers: Answers = ("Hello.",)) -> None:
        self.engine = RecordingEngine(answers, encode=odd_ids)
        self.sessions = Sessions(MemoryStore())
        metrics = Metrics()
        offer = Offer(Served(self.engine, renderer(), MAX_CONTEXT, "tiny"))
        exchange = Exchange(offer, MemoryStore(), metrics)
        self._app = gateway_app(exchange, self.sessions, metrics, key=KEY)

    async def open(self) -> Desk:
        self.sessions.create("session-1", SessionSettings())
        return self

    async def ask(self, path: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
        told = asyncio.Event()
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if told.is_set():
                await asyncio.Event().wait()
            told.set()
            return {"type": "http.request", "body": body}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {KEY}".encode()), (b"host", b"localhost")]
        await self._app({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)
