"""Forms of answers on a real vLLM server, through the gateway: forms are kept, chains are exact, none of it trains."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from anthropic import AsyncAnthropic
from guarded_vllm import guarded_vllm
from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict
from transformers import AutoTokenizer

from loopwright.build.gateway import serve_gateway
from loopwright.build.remote import RemoteEngine
from loopwright.engines.vllm.engine import VllmEngine
from loopwright.gateway.server import Address
from loopwright.models.smollm2 import smollm2_folder
from loopwright.types import (
    NOTHING_YET,
    Constraint,
    FinishReason,
    GenerateRequest,
    GrammarKind,
    PauseMode,
    Sampling,
    ServerKind,
    Thinking,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

CACHE = Path.home() / ".cache" / "loopwright" / "models"
KEY = "the-gateways-own-key"
ASKED: list[Any] = [{"role": "user", "content": "Tell me a long story about a fox."}]
ROOM = 200


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    right: bool
    colour: Literal["red", "green"]


ADD: Mapping[str, Any] = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"type": "integer", "maximum": 99}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
SUB = {**ADD, "name": "subtract", "description": "Subtracts."}
TOOLS: list[Any] = [{"type": "function", "function": tool} for tool in (ADD, SUB)]


@pytest.fixture(scope="module")
def model() -> Path:
    return smollm2_folder(CACHE)


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with guarded_vllm(model, tmp_path_factory.mktemp("vllm"), "--max-model-len", "2048") as server:
        yield server.url


class Desk:
    """A gateway in front of the server, with one session."""

    def __init__(self, admin: httpx.AsyncClient, base: str, key: str) -> None:
        self.admin, self.base, self.key = admin, base, key

    def openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.base}/v1", api_key=self.key, max_retries=0)

    def anthropic(self) -> AsyncAnthropic:
        return AsyncAnthropic(base_url=self.base, api_key=self.key, max_retries=0)

    async def chains(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = (await self.admin.get("/sessions/session-1/chains")).json()["chains"]
        return found


@asynccontextmanager
async def desk(url: str, folder: Path, **sampling: Any) -> AsyncIterator[Desk]:
    behind = RemoteEngine(url, None, None, CACHE, kind=ServerKind.VLLM)
    async with serve_gateway(
        behind, Address(), store=folder / "gateway.sqlite", key=KEY, renderer="auto", thinking=Thinking.KEEP
    ) as gateway:
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=gateway.base_url, headers=headers, trust_env=False) as admin:
            created = (await admin.post("/sessions/session-1", json={"sampling": sampling} if sampling else {})).json()
            yield Desk(admin, f"{gateway.base_url}/sessions/session-1", created["key"])


async def check_exact(d: Desk, model: Path, texts: Sequence[str], chains: int = 1) -> None:
    """Each text is what was sampled, token for token, with finite logprobs, and none of it trains."""
    found = await d.chains()
    assert len(found) == chains
    tokenizer = AutoTokenizer.from_pretrained(model)
    written = ["".join(tokenizer.decode(chain["ids"])) for chain in found]
    assert all(any(text in whole for whole in written) for text in texts)
    for chain in found:
        sampled = {i for i, one in enumerate(chain["mask"]) if one}
        assert {i for begin, end in chain["constrained"] for i in range(begin, end)} == sampled
        assert all(-100 < chain["logprobs"][i] <= 0 for i in sampled)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_fits_its_schema(url: str, model: Path, tmp_path: Path, streamed: bool) -> None:
    wish: Any = {"model": "any", "messages": ASKED, "max_tokens": ROOM, "response_format": Verdict}
    async with desk(url, tmp_path) as d, d.openai() as client:
        if streamed:
            async with client.chat.completions.stream(**wish) as stream:
                said = await stream.get_final_completion()
        else:
            said = await client.chat.completions.parse(**wish)
        assert said.choices[0].message.parsed is not None
        assert said.choices[0].finish_reason == "stop"
        content = said.choices[0].message.content or ""
        assert "\n" not in content, "JSON is on one line, as with our engine"
        await check_exact(d, model, [content])


async def test_responses_and_messages_answer_in_their_schemas(url: str, model: Path, tmp_path: Path) -> None:
    async with desk(url, tmp_path) as d, d.openai() as client, d.anthropic() as other:
        one = await client.responses.parse(model="any", input="A story.", text_format=Verdict, max_output_tokens=ROOM)
        two = await other.messages.parse(model="any", max_tokens=ROOM, messages=ASKED, output_format=Verdict)
        assert isinstance(one.output_parsed, Verdict)
        assert isinstance(two.parsed_output, Verdict)
        await check_exact(d, model, [one.output_text], chains=2)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "subtract"}}])
async def test_a_tool_is_called_if_it_must_be(url: str, model: Path, tmp_path: Path, choice: Any) -> None:
    async with desk(url, tmp_path) as d, d.openai() as client:
        said = await client.chat.completions.create(
            model="any", messages=ASKED, tools=TOOLS, tool_choice=choice, max_tokens=ROOM, parallel_tool_calls=False
        )
        assert said.choices[0].finish_reason == "tool_calls"
        calls: Any = said.choices[0].message.tool_calls
        (call,) = calls
        assert call.type == "function"
        names = {"subtract"} if isinstance(choice, dict) else {"add", "subtract"}
        assert call.function.name in names
        assert {name: type(value) for name, value in json.loads(call.function.arguments).items()} == {
            "a": int,
            "b": int,
        }
        await check_exact(d, model, [call.function.arguments])


async def test_two_turns_are_one_chain(url: str, model: Path, tmp_path: Path) -> None:
    """A call that had to be made, its result, and an answer in a schema. With other tools it would be another chain."""
    async with desk(url, tmp_path) as d, d.openai() as client:
        first = await client.chat.completions.create(
            model="any", messages=ASKED, tools=TOOLS, tool_choice="required", max_tokens=ROOM, parallel_tool_calls=False
        )
        message = first.choices[0].message
        calls: Any = message.tool_calls
        (call,) = calls
        history = [*ASKED, message.model_dump(exclude_none=True)]
        history.append({"role": "tool", "tool_call_id": call.id, "content": "5"})
        schema = {"name": "verdict", "schema": Verdict.model_json_schema()}
        second = await client.chat.completions.create(
            model="any",
            messages=history,
            tools=TOOLS,
            max_tokens=ROOM,
            response_format={"type": "json_schema", "json_schema": schema},
        )
        answer = second.choices[0].message
        assert answer.tool_calls or Verdict.model_validate_json(answer.content or "")
        await check_exact(d, model, [])


async def test_a_form_of_some_turns_only(url: str, tmp_path: Path) -> None:
    """The free turn trains, the constrained one does not."""
    async with desk(url, tmp_path) as d, d.openai() as client:
        free = await client.chat.completions.create(model="any", messages=ASKED, max_tokens=12)
        history: list[Any] = [*ASKED, {"role": "assistant", "content": free.choices[0].message.content}]
        history.append({"role": "user", "content": "Is it red?"})
        await client.chat.completions.parse(model="any", messages=history, max_tokens=ROOM, response_format=Verdict)
        (chain,) = await d.chains()
        sampled = [i for i, one in enumerate(chain["mask"]) if one]
        ((begin, end),) = chain["constrained"]
        assert [i for i in sampled if i < begin] == sampled[:12]
        assert end == sampled[-1] + 1


async def test_samples_of_one_call_each_keep_the_form(url: str, model: Path, tmp_path: Path) -> None:
    schema = {"name": "verdict", "schema": Verdict.model_json_schema()}
    async with desk(url, tmp_path) as d, d.openai() as client:
        said = await client.chat.completions.create(
            model="any",
            messages=ASKED,
            n=4,
            max_tokens=ROOM,
            response_format={"type": "json_schema", "json_schema": schema},
        )
        texts = [choice.message.content or "" for choice in said.choices]
        assert all(Verdict.model_validate_json(text) for text in texts)
        await check_exact(d, model, texts, chains=4)


async def test_an_answer_that_a_pause_cuts_begins_again_and_keeps_its_form(url: str, model: Path) -> None:
    """Its logprobs do not train, so nothing is lost but time (T8)."""
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 60, "maxItems": 60}
    wanted = Constraint(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    tokenizer = AutoTokenizer.from_pretrained(model)
    sampling = Sampling(max_new_tokens=400, stop_token_ids=(tokenizer.eos_token_id,))
    request = GenerateRequest("cut", tuple(range(300, 340)), sampling, constraint=wanted)
    async with VllmEngine.connect(url, None) as engine:
        going = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(1.0)
        assert not going.done()
        await engine.pause(PauseMode.ABORT)
        assert await asyncio.wait_for(going, 60) == NOTHING_YET
        await engine.resume()
        said = await engine.generate(request)
    assert said.finish is FinishReason.STOP
    assert said.constrained == ((0, len(said.ids)),)
    assert len(json.loads(tokenizer.decode(said.ids, skip_special_tokens=True))) == 60


async def test_a_schema_that_cannot_be_kept_is_a_400(url: str, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with desk(url, tmp_path) as d, d.openai() as client:
        with pytest.raises(openai.BadRequestError, match="uniqueItems"):
            await client.chat.completions.create(model="any", messages=ASKED, max_tokens=ROOM, response_format=wanted)
        assert await d.chains() == []


async def test_the_likeliest_tokens_are_told(url: str, tmp_path: Path) -> None:
    async with desk(url, tmp_path) as d, d.openai() as client:
        said = await client.chat.completions.create(
            model="any", messages=ASKED, max_tokens=12, logprobs=True, top_logprobs=20, temperature=1.0
        )
        odds = said.choices[0].logprobs
        assert odds is not None
        for token in odds.content or ():
            told = [one.logprob for one in token.top_logprobs]
            # vLLM lists no more than 20, and the sampled one first.
            assert len(told) in (19, 20)
            assert told == sorted(told, reverse=True)
            assert token.logprob <= told[0] + 1e-6
            if token.logprob > told[-1]:
                assert token.token in [one.token for one in token.top_logprobs]
        assert len(odds.content or ()) == 12


async def test_the_likeliest_tokens_of_a_form_are_refused(url: str, tmp_path: Path) -> None:
    async with desk(url, tmp_path) as d, d.openai() as client:
        with pytest.raises(openai.BadRequestError, match="top_logprobs"):
            await client.chat.completions.parse(
                model="any", messages=ASKED, max_tokens=12, logprobs=True, top_logprobs=3, response_format=Verdict
            )
