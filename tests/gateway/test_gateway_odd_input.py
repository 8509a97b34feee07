"""Odd input: never a 500, never a crash, and a session that was asked nonsense is as it was."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Coroutine
from typing import Any

import pytest
from gateway_house import ADD, ADD_ANTHROPIC, ADD_GEMINI, ADD_RESPONSES, KEY, Desk, house
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

GENERATE, COUNT = "v1beta/models/m:generateContent", "v1beta/models/m:countTokens"
PATHS = (
    "v1/chat/completions",
    "v1/completions",
    "v1/responses",
    "v1/messages",
    "v1/messages/count_tokens",
    GENERATE,
    COUNT,
)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
]
CHAT = {
    "model": "m",
    "messages": [
        *TALK,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ],
    "tools": [ADD],
    "temperature": 0.5,
    "max_tokens": 9,
    "stop": ["x"],
    "n": 1,
    "stream": False,
    "stream_options": {"include_usage": True},
}
RESPONSES = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
    ],
    "tools": [ADD_RESPONSES, {"type": "web_search"}],
    "max_output_tokens": 9,
    "stream": True,
}
MESSAGES = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}]},
    ],
    "tools": [ADD_ANTHROPIC],
    "stream": True,
}
COMPLETIONS = {"model": "m", "prompt": [17, 18, 19], "max_tokens": 9, "stop": ["x"], "logprobs": 0, "stream": True}
GEMINI = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [
        {"role": "user", "parts": [{"text": "Hi"}, {"inlineData": {"mimeType": "text/plain", "data": "aGk="}}]},
        {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "add", "response": {"output": "2"}}}]},
    ],
    "tools": [{"functionDeclarations": [ADD_GEMINI]}],
    "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    "generationConfig": {"maxOutputTokens": 9, "stopSequences": ["x"], "thinkingConfig": {"includeThoughts": True}},
}
BEGUN = {**CHAT, "messages": [*TALK, {"role": "assistant", "content": "It", "prefix": True}], "return_token_ids": True}
FREEFORM = {
    **RESPONSES,
    "tools": [{"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark", "definition": "s: x"}}],
}
GOOD: dict[str, dict[str, Any]] = {
    "v1/chat/completions": CHAT,
    "v1/responses": RESPONSES,
    "v1/messages": MESSAGES,
    GENERATE: GEMINI,
}
GOOD |= {"v1/messages/count_tokens": MESSAGES, "v1/completions": COMPLETIONS, COUNT: GEMINI}
OTHERS: dict[str, dict[str, Any]] = {"v1/chat/completions": BEGUN, "v1/responses": FREEFORM}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, inner in inside for place in places(inner, (*at, key)))]


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, bytes]:
    """A good request in which one or two places hold something else, or are gone."""
    path = draw(st.sampled_from(PATHS))
    body: Any = copy.deepcopy(draw(st.sampled_from([GOOD[path], OTHERS.get(path, GOOD[path])])))
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from(places(body)))
        if not place:
            body = draw(json_values)
            break
        holder = body
        for key in place[:-1]:
            holder = holder[key]
        if draw(st.booleans()) and isinstance(holder, dict):
            del holder[place[-1]]
        else:
            holder[place[-1]] = draw(json_values)
    return path, json.dumps(body).encode()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@settings(max_examples=200)
@given(mutated())
def test_mutated_requests_are_answered_or_refused(request: tuple[str, bytes]) -> None:
    check_mutated(request)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=10_000, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_ten_thousand_mutated_requests(request: tuple[str, bytes]) -> None:
    check_mutated(request)


def check_mutated(request: tuple[str, bytes]) -> None:
    async def ask() -> None:
        desk = await Desk().open()
        path, body = request
        status, answer = await desk.ask(f"/session-1/{path}", body)
        assert status in (200, 400), (status, answer, body)
        recorder = desk.sessions.find("session-1").recorder
        if status == 400:
            error = json.loads(answer)["error"]
            assert error["message"]
            assert len(recorder) == 0
        status, _ = await desk.ask("/session-1/v1/chat/completions", json.dumps(CHAT).encode())
        assert status == 200

    run(ask())


@settings(max_examples=150)
@given(st.sampled_from(PATHS), st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_bodies_that_are_no_requests_are_refused(path: str, body: bytes) -> None:
    async def ask() -> None:
        desk = await Desk().open()
        status, answer = await desk.ask(f"/session-1/{path}", body)
        assert status == 400, (answer, body)

    run(ask())


@settings(max_examples=150)
@given(st.text(max_size=30), st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "BREW"]))
def test_any_path_is_answered(path: str, method: str) -> None:
    async def ask() -> None:
        desk = await Desk().open()
        status, _ = await desk.ask("/" + path, b"", method)
        assert status < 500

    run(ask())


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"messages":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"messages": [{"role": "user", "content": "\\ud800 alone"}]}',
        b'{"messages": [{"role": "user", "content": 1e999}]}',
        b'{"messages": [{"role": "user", "content": NaN}]}',
        json.dumps({"messages": TALK, "tools": [{**ADD, "function": {"name": "f", "parameters": {"a": [[[]]] * 9}}}]}),
    ],
    ids=["deep", "nested", "surrogate", "huge number", "nan", "odd schema"],
)
async def test_special_bodies(body: bytes | str) -> None:
    desk = await Desk().open()
    raw = body.encode() if isinstance(body, str) else body
    status, answer = await desk.ask("/session-1/v1/chat/completions", raw)
    assert status in (200, 400), answer
    assert (status == 200) == (b"alone" in raw or b'"parameters"' in raw)


@pytest.mark.parametrize("path", PATHS)
async def test_schemas_and_arguments_that_nest_too_deeply_are_refused(path: str) -> None:
    deep: Any = {}
    for _ in range(400):
        deep = {"a": deep}
    desk = await Desk().open()
    for body in (
        {
            "tools": [
                {"type": "function", "name": "f", "function": {"name": "f", "parameters": deep}, "parameters": deep}
            ]
        },
        {"tools": [{"name": "f", "input_schema": deep}]},
        {"metadata": deep, "tool_choice": deep},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": deep}]}]},
    ):
        status, answer = await desk.ask(f"/session-1/{path}", json.dumps(GOOD[path] | body).encode())
        assert status in (200, 400), answer


async def test_unknown_parameters_parts_and_tools_are_ignored() -> None:
    desk = await Desk().open()
    odd = {"future": {"x": 1}, "metadata": None, "logit_bias": None, "user": None, "betas": ["x"]}
    chat = GOOD["v1/chat/completions"] | odd | {"tools": [ADD, {"type": "namespace", "name": "n"}, None]}
    messages = GOOD["v1/messages"] | odd | {"tools": [ADD_ANTHROPIC, {"type": "web_search_20250305", "name": "w"}]}
    for path, body in (("v1/chat/completions", chat), ("v1/messages", messages), ("v1/responses", RESPONSES | odd)):
        status, answer = await desk.ask(f"/session-1/{path}", json.dumps(body).encode())
        assert status == 200, answer
    turns = desk.sessions.find("session-1").recorder.turns
    assert [[tool["name"] for tool in turn.tools] for turn in turns] == [["add"]] * 3


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("v1/chat/completions", {"type": "image_url", "image_url": {"url": "data:"}}),
        ("v1/messages", {"type": "image", "source": {}}),
    ],
)
async def test_pictures_are_refused(path: str, part: dict[str, Any]) -> None:
    desk = await Desk().open()
    body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 5}
    status, answer = await desk.ask(f"/session-1/{path}", json.dumps(body).encode())
    assert status == 400
    assert b"cannot be shown" in answer


async def test_an_unknown_previous_response_is_refused() -> None:
    desk = await Desk().open()
    body = {"input": "Hi", "previous_response_id": "resp_gone"}
    status, answer = await desk.ask("/session-1/v1/responses", json.dumps(body).encode())
    assert status == 400
    assert json.loads(answer)["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(("path", "kind"), [("v1/messages", "request_too_large"), ("v1/responses", None)])
@pytest.mark.parametrize("announced", [True, False])
async def test_huge_bodies_are_refused_in_the_callers_dialect(path: str, kind: str | None, announced: bool) -> None:
    async with house([]) as h:
        await h.session()
        reader, writer = await asyncio.open_connection("127.0.0.1", h.gateway.port)
        length = f"content-length: {1 << 40}" if announced else "transfer-encoding: chunked"
        head = f"POST /session-1/{path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\n{length}\r\n\r\n"
        writer.write(head.encode())
        for _ in range(0 if announced else 65):
            writer.write(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
        answer = await reader.readuntil(b"}}")
        writer.close()
        assert b" 413 " in answer.partition(b"\r\n")[0]
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == (kind or "invalid_request_error")
