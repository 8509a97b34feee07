"""Structured outputs and tool choice, as agents ask for them: with a model that strays without a constraint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pytest
from gateway_house import ADD, ADD_ANTHROPIC, ADD_RESPONSES, Desk, House
from pydantic import BaseModel, ConfigDict
from torch_house import CONTEXT, check_trained, torch_house

from loopwright.testing.tiny import tiny_llama

QUESTION: list[Any] = [{"role": "user", "content": "Which is it?"}]
ROOM = 1500


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    right: bool
    colour: Literal["red", "green"]
    marks: list[int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"), initializer_range=0.4, max_position_embeddings=CONTEXT)


def check_one_chain(folder: Path, h: House, chains: int = 1) -> None:
    found = h.chains()
    assert len(found) == chains
    check_trained(folder, found)


async def test_chat_parse_completes(folder: Path) -> None:
    async with torch_house(folder) as h, h.openai(await h.session(seed=1)) as client:
        said = await client.chat.completions.parse(
            model="any", messages=QUESTION, response_format=Verdict, max_tokens=ROOM
        )
        assert said.choices[0].message.parsed is not None
        assert said.choices[0].finish_reason == "stop"
        check_one_chain(folder, h)


async def test_a_streamed_chat_parses_as_it_comes(folder: Path) -> None:
    async with torch_house(folder) as h, h.openai(await h.session(seed=2)) as client:
        async with client.chat.completions.stream(
            model="any", messages=QUESTION, response_format=Verdict, max_tokens=ROOM
        ) as stream:
            said = await stream.get_final_completion()
        assert said.choices[0].message.parsed is not None
        check_one_chain(folder, h)


async def test_each_sample_of_a_call_keeps_the_form(folder: Path) -> None:
    async with torch_house(folder) as h, h.openai(await h.session(seed=3)) as client:
        said = await client.chat.completions.create(
            model="any",
            messages=QUESTION,
            n=4,
            max_tokens=ROOM,
            response_format={"type": "json_schema", **_chat_schema()},
        )
        assert all(Verdict.model_validate_json(choice.message.content or "") for choice in said.choices)
        check_one_chain(folder, h, chains=4)


async def test_responses_parse_completes(folder: Path) -> None:
    async with torch_house(folder) as h, h.openai(await h.session(seed=4)) as client:
        said = await client.responses.parse(model="any", input="Which?", text_format=Verdict, max_output_tokens=ROOM)
        assert said.output_parsed is not None
        check_one_chain(folder, h)


async def test_messages_parse_completes(folder: Path) -> None:
    async with torch_house(folder) as h, h.anthropic(await h.session(seed=5)) as client:
        said = await client.messages.parse(model="any", max_tokens=ROOM, messages=QUESTION, output_format=Verdict)
        assert isinstance(said.parsed_output, Verdict)
        check_one_chain(folder, h)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
async def test_a_chat_calls_a_tool_if_it_must(folder: Path, choice: Any) -> None:
    async with torch_house(folder) as h, h.openai(await h.session(seed=6)) as client:
        said = await client.chat.completions.create(
            model="any",
            messages=QUESTION,
            tools=[closed_add()],
            tool_choice=choice,
            parallel_tool_calls=False,
            max_tokens=ROOM,
        )
        assert said.choices[0].finish_reason == "tool_calls"
        calls: Any = said.choices[0].message.tool_calls
        (call,) = calls
        assert call.type == "function"
        assert call.function.name == "add"
        assert {type(value) for value in json.loads(call.function.arguments).values()} == {int}
        check_one_chain(folder, h)


async def test_responses_calls_a_tool_if_it_must(folder: Path) -> None:
    async with torch_house(folder) as h, h.openai(await h.session(seed=7)) as client:
        said = await client.responses.create(
            model="any",
            input="Which?",
            tools=[{**ADD_RESPONSES, "parameters": closed_add()["function"]["parameters"]}],
            tool_choice={"type": "function", "name": "add"},
            max_output_tokens=ROOM,
        )
        assert [item.type for item in said.output] == ["function_call"]
        check_one_chain(folder, h)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
async def test_messages_call_a_tool_if_they_must(folder: Path, choice: Any) -> None:
    tool: Any = {**ADD_ANTHROPIC, "input_schema": closed_add()["function"]["parameters"]}
    async with torch_house(folder) as h, h.anthropic(await h.session(seed=8)) as client:
        said = await client.messages.create(
            model="any",
            max_tokens=ROOM,
            messages=QUESTION,
            tools=[tool],
            tool_choice={**choice, "disable_parallel_tool_use": True},
        )
        assert said.stop_reason == "tool_use"
        assert [block.type for block in said.content] == ["tool_use"]
        check_one_chain(folder, h)


async def test_json_or_a_call_where_both_are_offered(folder: Path) -> None:
    """A model that may call tools is not made to: it answers in the schema, or calls."""
    seen = set()
    async with torch_house(folder) as h, h.openai(await h.session(seed=9)) as client:
        for number in range(8):
            said = await client.chat.completions.create(
                model="any",
                messages=[{"role": "user", "content": f"{number}?"}],
                tools=[closed_add()],
                max_tokens=ROOM,
                response_format={"type": "json_schema", **_chat_schema()},
            )
            message = said.choices[0].message
            seen.add(said.choices[0].finish_reason)
            if message.content:
                assert Verdict.model_validate_json(message.content)
        assert "length" not in seen
        assert seen <= {"stop", "tool_calls"}


async def test_json_objects_of_any_shape(folder: Path) -> None:
    async with torch_house(folder) as h, h.openai(await h.session(seed=10)) as client:
        said = await client.chat.completions.create(
            model="any", messages=QUESTION, max_tokens=60, response_format={"type": "json_object"}
        )
        assert (said.choices[0].message.content or "").startswith("{")


async def test_tokens_that_run_out_within_a_form_end_it_by_length(folder: Path) -> None:
    async with torch_house(folder) as h, h.openai(await h.session(seed=11)) as client:
        with pytest.raises(openai.LengthFinishReasonError):
            await client.chat.completions.parse(model="any", messages=QUESTION, response_format=Verdict, max_tokens=5)


async def test_a_record_keeps_which_tokens_do_not_train(folder: Path) -> None:
    from loopwright.gateway.record import record_from_json

    async with torch_house(folder) as h, h.openai(await h.session(seed=12)) as client:
        await client.chat.completions.parse(model="any", messages=QUESTION, response_format=Verdict, max_tokens=ROOM)
        told = (await h.http.get("/sessions/session-1/record")).json()
        (chain,) = h.chains()
        assert record_from_json(told).chains == (chain,)
        assert chain.constrained


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("chat/completions", {"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ("chat/completions", {"response_format": {"type": "yaml"}}, "response_format.type"),
    ("chat/completions", {"response_format": []}, "response_format"),
    ("chat/completions", {"tool_choice": "required"}, "tool_choice"),
    ("chat/completions", {"tool_choice": "sometimes"}, "tool_choice"),
    ("chat/completions", {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "sub"),
    ("chat/completions", {"tools": [ADD], "tool_choice": {"type": "web_search"}}, "web_search"),
    ("responses", {"text": {"format": {"type": "json_schema", "schema": 3}}}, "text.format.schema"),
    ("responses", {"tools": [ADD_RESPONSES], "tool_choice": {"type": "function", "name": "sub"}}, "sub"),
    ("messages", {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ("messages", {"output_format": {"type": "xml"}}, "output_format.type"),
    ("messages", {"tool_choice": {"type": "any"}}, "tool_choice"),
    ("messages", {"tools": [ADD_ANTHROPIC], "tool_choice": {"type": "tool", "name": "sub"}}, "sub"),
]


@pytest.mark.parametrize(("path", "body", "words"), BAD, ids=lambda value: str(value)[:40])
async def test_a_form_that_makes_no_sense_is_a_400_that_says_where(path: str, body: dict[str, Any], words: str) -> None:
    desk = await Desk().open()
    asked = {"messages": QUESTION, "input": "Which?", "max_tokens": 9, **body}
    status, said = await desk.ask(f"/session-1/v1/{path}", json.dumps(asked).encode())
    assert status == 400
    assert words in json.loads(said)["error"]["message"]
    assert not desk.engine.log


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_schema_that_cannot_be_kept_is_a_400_in_every_dialect(folder: Path, streamed: bool) -> None:
    schema: Any = {"type": "object", "properties": {"all": {"type": "array", "uniqueItems": True}}}
    text: Any = {"format": {"type": "json_schema", "name": "all", "schema": schema}}
    config: Any = {"format": {"type": "json_schema", "schema": schema}}
    async with torch_house(folder) as h:
        session = await h.session()
        async with h.openai(session) as client:
            with pytest.raises(openai.BadRequestError, match="uniqueItems") as chat:
                await client.chat.completions.create(
                    model="any",
                    messages=QUESTION,
                    stream=streamed,
                    response_format={"type": "json_schema", "json_schema": {"name": "all", "schema": schema}},
                )
            with pytest.raises(openai.BadRequestError, match="uniqueItems"):
                await client.responses.create(model="any", input="Which?", stream=streamed, text=text)
        async with h.anthropic(session) as other:
            with pytest.raises(anthropic.BadRequestError, match="uniqueItems"):
                await other.messages.create(
                    model="any", max_tokens=9, messages=QUESTION, stream=streamed, output_config=config
                )
        assert chat.value.param == "response_format.json_schema.schema"
        assert not len(h.recorder())


async def test_allowed_tools_that_are_required_are_the_only_ones(folder: Path) -> None:
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
    named = {"type": "function", "function": {"name": "other"}}
    choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    async with torch_house(folder) as h, h.openai(await h.session(seed=13)) as client:
        said = await client.chat.completions.create(
            model="any",
            messages=QUESTION,
            tools=[closed_add(), other],
            tool_choice=choice,
            max_tokens=ROOM,
        )
        assert {call.function.name for call in said.choices[0].message.tool_calls or ()} == {"other"}


def closed_add() -> Any:
    parameters = {**ADD["function"]["parameters"], "required": ["a", "b"], "additionalProperties": False}
    return {**ADD, "function": {**ADD["function"], "parameters": parameters}}


def _chat_schema() -> Any:
    return {"json_schema": {"name": "verdict", "strict": True, "schema": Verdict.model_json_schema()}}


async def test_a_completion_and_gemini_answer_in_their_schemas(folder: Path) -> None:
    google = {
        "type": "OBJECT",
        "properties": {"right": {"type": "BOOLEAN"}, "colour": {"type": "STRING", "enum": ["red"], "nullable": True}},
        "required": ["right", "colour"],
        "propertyOrdering": ["right", "colour"],
    }
    async with torch_house(folder) as h:
        await h.session(seed=3)
        form = {"type": "json_schema", "json_schema": {"name": "v", "schema": Verdict.model_json_schema()}}
        body = {"prompt": "Which is it?", "response_format": form, "max_tokens": ROOM}
        told = (await h.post("/session-1/v1/completions", body)).json()
        Verdict.model_validate_json(told["choices"][0]["text"])
        config = {"responseMimeType": "application/json", "responseSchema": google, "maxOutputTokens": ROOM}
        asked = {"contents": [{"parts": [{"text": "Which is it?"}]}], "generationConfig": config}
        told = (await h.post("/session-1/v1beta/models/any:generateContent", asked)).json()
        said = json.loads(told["candidates"][0]["content"]["parts"][0]["text"])
        assert list(said) == ["right", "colour"]
        check_one_chain(folder, h, chains=2)
