"""What agents ask for and cannot get is a 400 in their dialect, and leaves the session as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateway_house import ADD, ADD_GEMINI, KEY, Desk, house

from loopwright.gateway.dialects import ChatCompletions, Completions, Gemini
from loopwright.gateway.dialects.forms import GUIDED
from loopwright.gateway.reading import ROOM, read_json
from loopwright.types import AnswerForm

CHAT = "/session-1/v1/chat/completions"
COMPLETE = "/session-1/v1/completions"
RESPONSES = "/session-1/v1/responses"
GENERATE = "/session-1/v1beta/models/any:generateContent"
ASKED: list[Any] = [{"role": "user", "content": "Hi"}]
CONTENTS: list[Any] = [{"role": "user", "parts": [{"text": "Hi"}]}]
DEEPEST = 254


def nested(depth: int) -> Any:
    value: Any = {"type": "object"}
    for _ in range(depth):
        value = {"items": value}
    return value


def function(schema: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", "parameters": schema}}]


@pytest.mark.parametrize("less", [2, 6, ROOM + 6])
@pytest.mark.parametrize("field", ["logit_bias", "tools", "response_format"])
async def test_no_wish_makes_a_session_impossible_to_end(field: str, less: int) -> None:
    """Whatever is accepted can be shown, ended and deleted; the rest is refused."""
    value = nested(DEEPEST - less - 4)
    fields = {
        "logit_bias": value,
        "tools": function({"type": "object", "properties": {"a": value}}),
        "response_format": {"type": "json_schema", "json_schema": {"schema": value}},
    }
    async with house(["Hello."]) as h:
        await h.session()
        body = json.dumps({"messages": ASKED, field: fields[field]}).encode()
        told = await h.http.post(CHAT, content=body)
        assert told.status_code == (200 if less > ROOM else 400)
        assert (await h.http.get("/sessions/session-1")).status_code == 200
        assert (await h.http.post("/sessions/session-1/complete")).status_code == 200
        assert (await h.http.delete("/sessions/session-1")).status_code in (200, 204)


@pytest.mark.parametrize("name", ["parameters", "parametersJsonSchema"])
@pytest.mark.parametrize("mode", ["AUTO", "ANY"])
async def test_a_deep_schema_is_refused_in_geminis_dialect(name: str, mode: str) -> None:
    desk = await Desk().open()
    tools = [{"functionDeclarations": [{"name": "f", name: nested(600)}]}]
    config = {"functionCallingConfig": {"mode": mode}}
    status, said = await desk.ask(
        GENERATE, json.dumps({"contents": CONTENTS, "tools": tools, "toolConfig": config}).encode()
    )
    assert (status, json.loads(said)["error"]["status"]) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("field", ["response_format", "tools"])
async def test_a_huge_schema_is_refused(field: str) -> None:
    huge = {"type": "object", "properties": {"a": {"enum": [f"value {n}" for n in range(100_000)]}}}
    form = {"response_format": {"type": "json_schema", "json_schema": {"schema": huge}}}
    desk = await Desk().open()
    asked = form if field == "response_format" else {"tools": function(huge), "tool_choice": "required"}
    status, said = await desk.ask(CHAT, json.dumps({"messages": ASKED, **asked}).encode())
    assert status == 400
    assert "bytes" in json.loads(said)["error"]["message"]


async def test_a_constraint_is_written_once_for_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    import loopwright.render.chat_template as module

    written = list[AnswerForm]()
    right = module.ChatTemplateRenderer.constraint

    def constraint(self: Any, form: AnswerForm, prompt: Any) -> Any:
        written.append(form)
        return right(self, form, prompt)

    monkeypatch.setattr(module.ChatTemplateRenderer, "constraint", constraint)
    desk = await Desk(["{}"] * 4).open()
    body = {"messages": ASKED, "n": 4, "response_format": {"type": "json_object"}}
    status, _ = await desk.ask(CHAT, json.dumps(body).encode())
    assert (status, len(written)) == (200, 1)


async def test_too_many_ids_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = await Desk().open()
    monkeypatch.setattr("loopwright.gateway.exchange.text_history", None)
    status, said = await desk.ask(COMPLETE, json.dumps({"prompt": [17] * 5000}).encode())
    assert (status, json.loads(said)["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("name", GUIDED)
@pytest.mark.parametrize("path", [CHAT, COMPLETE])
async def test_forms_in_the_words_of_vllm_are_refused(path: str, name: str) -> None:
    desk = await Desk().open()
    body = {"messages": ASKED, "prompt": "Hi", name: {"a": 1}}
    status, said = await desk.ask(path, json.dumps(body).encode())
    assert (status, json.loads(said)["error"]["param"]) == (400, name)


async def test_no_chat_continues_a_completion() -> None:
    desk = await Desk(["Yes."] * 2).open()
    _, said = await desk.ask(COMPLETE, b'{"prompt": "Hi"}')
    before = json.loads(said)["id"].removeprefix("cmpl-")
    body = {"input": "And?", "previous_response_id": f"resp_{before}"}
    status, said = await desk.ask(RESPONSES, json.dumps(body).encode())
    assert (status, json.loads(said)["error"]["param"]) == (400, "previous_response_id")


async def test_a_long_limit_is_refused() -> None:
    async with house(["Yes."]) as h:
        await h.session()
        answer = (await h.post(RESPONSES, {"input": "Hi"})).json()["id"]
        told = await h.http.get(f"{RESPONSES}/{answer}/input_items?limit=000000001{'0' * 5000}")
        assert told.status_code == 400
        told = await h.http.get(f"{RESPONSES}/{answer}/input_items?limit={'0' * 5000}1")
        assert told.status_code == 400


async def test_a_missing_key_is_told_in_the_words_of_the_api() -> None:
    async with house(["Never."]) as h:
        await h.session()
        for path, header in ((GENERATE, "x-goog-api-key"), (CHAT, "x-api-key")):
            told = await h.http.post(path, json={}, headers={"authorization": "Bearer no"})
            assert told.status_code == 401
            assert f"`{header}: KEY`" in told.json()["error"]["message"]
        told = await h.http.post(
            GENERATE, json={"contents": CONTENTS}, headers={"authorization": "", "x-goog-api-key": KEY}
        )
        assert told.status_code == 200


def test_geminis_forms_are_forms() -> None:
    schema = {"type": "OBJECT", "properties": {"a": {"type": "STRING", "nullable": True}}, "propertyOrdering": ["a"]}
    config = {"responseMimeType": "application/json", "responseSchema": schema}
    form = Gemini().read({"contents": CONTENTS, "generationConfig": config}).form
    assert form is not None
    assert form.schema == {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
    }
    tools = [{"functionDeclarations": [ADD_GEMINI, {"name": "other"}]}]
    for more, wanted in (({}, ["add", "other"]), ({"allowedFunctionNames": ["add"]}, ["add"])):
        calling = {"functionCallingConfig": {"mode": "ANY", **more}}
        form = Gemini().read({"contents": CONTENTS, "tools": tools, "toolConfig": calling}).form
        assert form is not None
        assert [one["name"] for one in form.tools] == wanted
    assert Gemini().read({"contents": CONTENTS, "tools": tools}).form is None


def test_a_completions_response_format_is_a_form() -> None:
    form = Completions().read({"prompt": "Hi", "response_format": {"type": "json_object"}}).form
    assert form is not None
    assert form.schema == {"type": "object"}


def test_gemini_reads_snake_case() -> None:
    schema = {"properties": {"first_one": {"type": "NUMBER"}}}
    said = {
        "system_instruction": {"parts": [{"text": "Be good."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Add."}]},
            {"role": "model", "parts": [{"function_call": {"id": "c", "name": "add", "args": {"first_one": 1}}}]},
            {"role": "user", "parts": [{"function_response": {"id": "c", "name": "add", "response": {"my_sum": 3}}}]},
            {"role": "user", "parts": [{"inline_data": {"mime_type": "text/plain", "data": "SGVsbG8="}}]},
        ],
        "generation_config": {"max_output_tokens": 5, "candidate_count": 2, "top_p": 0.5},
        "tools": [{"function_declarations": [{"name": "add", "parameters": schema}]}],
        "tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["add"]}},
    }
    call = Gemini().read(said)
    assert [message["role"] for message in call.messages] == ["system", "user", "assistant", "tool", "user"]
    assert json.loads(call.messages[2]["tool_calls"][0]["arguments"]) == {"first_one": 1}
    assert "my_sum" in call.messages[3]["content"]
    assert "Hello" in call.messages[4]["content"]
    assert (call.wishes.max_tokens, call.samples, call.wishes.top_p) == (5, 2, 0.5)
    assert call.tools[0]["parameters"] == {"properties": {"first_one": {"type": "number"}}}
    assert call.form is not None


def test_an_old_chat_that_wants_no_function_offers_none() -> None:
    functions = [{"name": "add", "parameters": {}}]
    for choice, offered in (("none", 0), ("auto", 1)):
        said = {"messages": ASKED, "functions": functions, "function_call": choice}
        assert len(ChatCompletions().read(read_json(json.dumps(said).encode())).tools) == offered


def test_a_custom_tool_is_among_the_allowed() -> None:
    allowed = {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "patch"}}]}
    said = {
        "messages": ASKED,
        "tools": [{"type": "custom", "custom": {"name": "patch"}}, ADD],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed},
    }
    form = ChatCompletions().read(said).form
    assert form is not None
    assert [tool["name"] for tool in form.tools] == ["patch"]
