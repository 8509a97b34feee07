"""Every kind of item, block and part that the three APIs define for a request: the model reads it, or a placeholder
stands for it and is counted, or the request is refused. Nothing is dropped in silence."""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Iterator
from typing import Any

import anthropic.types.beta as anthropic_beta
import pytest
from anthropic.types import tool_result_block_param
from gateway_house import Desk
from openai.types import chat as openai_chat
from openai.types import responses as openai_responses
from part_tables import (
    BLOCKS,
    DATA,
    IN_RESULTS,
    INPUT_PARTS,
    ITEMS,
    MARK,
    OF_ASSISTANTS,
    OMITTED,
    PARTS,
    PNG,
    READ,
    REFUSED,
    SHELL,
)

from loopwright.errors import RefusedError
from loopwright.gateway.dialects import AnthropicMessages, ChatCompletions, Dialect, Responses


def kinds_of(alias: Any) -> set[str]:
    """The values that `type` may have in a union of typed dicts."""
    found: set[str] = set()

    def literals(hint: Any) -> Iterator[str]:
        if typing.get_origin(hint) is typing.Literal:
            yield from typing.get_args(hint)
        for inner in typing.get_args(hint):
            if typing.get_origin(inner):
                yield from literals(inner)

    def walk(one: Any) -> None:
        if isinstance(one, type) and hasattr(one, "__required_keys__"):
            names = vars(sys.modules[one.__module__]) | {"ClassVar": typing.ClassVar}
            found.update(literals(typing.get_type_hints(one, names).get("type")))
        for inner in () if isinstance(one, type) else typing.get_args(one):
            walk(inner)

    walk(alias)
    return found


def test_the_tables_have_every_kind() -> None:
    assert set(BLOCKS) == kinds_of(anthropic_beta.BetaContentBlockParam)
    assert set(IN_RESULTS) == kinds_of(tool_result_block_param.Content)
    assert set(ITEMS) == kinds_of(openai_responses.ResponseInputItemParam)
    assert set(PARTS) - {"refusal"} == kinds_of(openai_chat.ChatCompletionContentPartParam)
    assert set(INPUT_PARTS) == kinds_of(openai_responses.ResponseInputContentParam)


def check(dialect: Dialect, body: dict[str, Any], outcome: str) -> None:
    if outcome == REFUSED:
        with pytest.raises(RefusedError):
            dialect.read(body)
        return
    messages = dialect.read(body).messages
    counted = sum(len(message.get("omitted", ())) for message in messages)
    shown = json.dumps([{**message, "omitted": None} for message in messages])
    assert (MARK in shown, counted) == ((True, 0) if outcome == READ else (False, 1)), messages
    assert "aaaa" not in shown


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks(kind: str) -> None:
    outcome, block = BLOCKS[kind]
    role = "assistant" if kind in OF_ASSISTANTS and kind != "tool_result" else "user"
    # An assistant's message at the end would be the beginning of the answer.
    check(AnthropicMessages(), {"messages": [USER, {"role": role, "content": [block]}, USER]}, outcome)


def in_result(api: str, parts: list[dict[str, Any]]) -> tuple[Dialect, dict[str, Any]]:
    """A request in which a tool has answered with these parts."""
    match api:
        case "messages":
            called: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
            result = {"type": "tool_result", "tool_use_id": "c1", "content": parts}
            turns: list[Any] = [{"role": "assistant", "content": [called]}, {"role": "user", "content": [result]}]
            return AnthropicMessages(), {"messages": [USER, *turns]}
        case "responses":
            items = [
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": parts},
            ]
            return Responses(), {"input": [USER, *items]}
        case _:
            called = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            turns = [
                {"role": "assistant", "content": None, "tool_calls": [called]},
                {"role": "tool", "tool_call_id": "c1", "content": parts},
            ]
            return ChatCompletions(), {"messages": [USER, *turns]}


@pytest.mark.parametrize("kind", IN_RESULTS)
def test_blocks_in_results(kind: str) -> None:
    outcome, block = IN_RESULTS[kind]
    dialect, body = in_result("messages", [block])
    check(dialect, body, outcome)


@pytest.mark.parametrize("kind", ITEMS)
def test_items(kind: str) -> None:
    outcome, item = ITEMS[kind]
    check(Responses(), {"input": [USER, item]}, outcome)


@pytest.mark.parametrize("kind", [*PARTS, *INPUT_PARTS])
def test_parts_of_a_task_and_of_a_result(kind: str) -> None:
    outcome, part = (PARTS | INPUT_PARTS)[kind]
    api, dialect, place = (
        ("chat", ChatCompletions(), "messages") if kind in PARTS else ("responses", Responses(), "input")
    )
    check(dialect, {place: [{"role": "user", "content": [part]}]}, outcome)
    there, body = in_result(api, [part])
    check(there, body, OMITTED if outcome == REFUSED else outcome)
    # After the model has spoken, what a user shows is what the agent saw: the rollout goes on.
    spoken = [USER, {"role": "assistant", "content": "Look."}, {"role": "user", "content": [part]}]
    check(dialect, {place: spoken}, OMITTED if outcome == REFUSED else outcome)


@pytest.mark.parametrize(
    ("api", "part"),
    [
        ("messages", {"type": "image", "source": PNG}),
        ("responses", {"type": "input_image", "image_url": DATA}),
        ("chat", {"type": "image_url", "image_url": {"url": DATA}}),
    ],
)
def test_the_model_reads_that_there_was_a_picture(api: str, part: dict[str, Any]) -> None:
    dialect, body = in_result(api, [{"type": "text", "text": "Read it:"}, part])
    result = dialect.read(body).messages[-1]
    assert result["content"] == "Read it:\n[image omitted: image/png]"
    assert list(result["omitted"]) == ["image"]


@pytest.mark.parametrize("api", ["messages", "responses", "chat"])
async def test_what_was_omitted_is_counted_once(api: str) -> None:
    path = {"messages": "v1/messages", "responses": "v1/responses", "chat": "v1/chat/completions"}[api]
    part = {"type": "image", "source": PNG} if api == "messages" else {"type": "input_image", "image_url": DATA}
    desk = await Desk(["Hello.", "Ho."]).open()
    _, body = in_result(api, [part])
    name = "input" if api == "responses" else "messages"
    for said in ("Hello.", "Ho."):
        status, answer = await desk.ask(f"/session-1/{path}", json.dumps(body | {"max_tokens": 50}).encode())
        assert status == 200, answer
        body[name] += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
    _, described = await desk.ask("/sessions/session-1", b"", "GET")
    assert json.loads(described)["omitted"] == {"image": 1}
    _, metrics = await desk.ask("/metrics", b"", "GET")
    assert b'loopwright_gateway_omitted_parts_total{kind="image"} 1' in metrics
    assert len(desk.sessions.find("session-1").recorder.chains()) == 1


def test_a_shell_call_and_its_output_belong_together() -> None:
    items = [
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "status": "completed", "action": SHELL},
        {"type": "local_shell_call_output", "id": "lsh_1", "output": "the-output"},
    ]
    _, called, result = Responses().read({"input": [USER, *items]}).messages
    (call,) = called["tool_calls"]
    assert (call["id"], call["name"]) == ("c1", "local_shell")
    assert json.loads(call["arguments"])["command"] == ["echo", MARK]
    assert (result["role"], result["content"]) == ("tool", "the-output")
    assert (result["tool_call_id"], result["name"]) == ("c1", "local_shell")


def test_what_a_server_ran_stands_between_what_the_model_said() -> None:
    said = [
        {"type": "text", "text": "Let me look."},
        BLOCKS["server_tool_use"][1],
        BLOCKS["web_search_tool_result"][1],
        {"type": "text", "text": "Found."},
    ]
    messages = AnthropicMessages().read({"messages": [USER, {"role": "assistant", "content": said}, USER]}).messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert messages[2]["name"] == "web_search"
    assert [message["content"] for message in (messages[1], messages[3])] == ["Let me look.", "Found."]


def test_custom_calls_and_refusals_of_chats_are_read() -> None:
    called = {"id": "c1", "type": "custom", "custom": {"name": "f", "input": MARK}}
    messages = [USER, {"role": "assistant", "tool_calls": [called]}, {"role": "assistant", "refusal": "No."}]
    _, first, second = ChatCompletions().read({"messages": messages}).messages
    assert json.loads(first["tool_calls"][0]["arguments"]) == {"input": MARK}
    assert second["content"] == "No."
    heard = {"role": "assistant", "content": None, "audio": {"id": "a1"}}
    assert ChatCompletions().read({"messages": [USER, heard]}).messages[1]["omitted"] == ("audio",)


@pytest.mark.parametrize("api", ["messages", "responses"])
def test_what_nests_too_deeply_is_refused(api: str) -> None:
    deep: Any = "x"
    parts: Any = "x"
    for _ in range(400):
        deep, parts = [deep], [{"type": "new", "content": parts}]
    dialect, body = in_result(api, parts)
    with pytest.raises(RefusedError, match="nested"):
        dialect.read(body)
    ran = {"type": "bash_code_execution_tool_result", "tool_use_id": "c1", "content": deep}
    shell = {"type": "shell_call_output", "call_id": "c1", "output": deep}
    blocks = {"messages": [USER, {"role": "assistant", "content": [ran]}]}
    with pytest.raises(RefusedError, match="nest"):
        dialect.read(blocks if api == "messages" else {"input": [USER, shell]})
