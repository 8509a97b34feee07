"""Tools that Anthropic defines and the agent runs: they come without a schema, and the model is told what they take."""

from __future__ import annotations

import json

import pytest
from gateway_house import ADD_ANTHROPIC, Desk, call_text, house

from loopwright.gateway.dialects import AnthropicMessages

HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("kind", "name", "takes", "required"),
    [
        ("bash_20250124", "bash", {"command", "restart"}, []),
        ("text_editor_20250728", "str_replace_based_edit_tool", {"new_str", "insert_text"}, ["command", "path"]),
        ("text_editor_20250124", "str_replace_editor", {"command", "view_range"}, ["command", "path"]),
        ("memory_20250818", "memory", {"command", "old_path", "insert_text"}, ["command"]),
    ],
)
def test_a_typed_tool_is_described(kind: str, name: str, takes: set[str], required: list[str]) -> None:
    (tool,) = AnthropicMessages().read({"messages": HI, "tools": [{"type": kind, "name": name}]}).tools
    assert tool["name"] == name
    assert tool["description"]
    assert takes <= set(tool["parameters"]["properties"])
    assert tool["parameters"]["required"] == required


def test_each_editor_is_told_what_to_insert_by_the_name_that_it_reads() -> None:
    for kind, inserted in (("20241022", "`new_str`"), ("20250429", "`new_str`"), ("20250728", "`insert_text`")):
        tools = [{"type": f"text_editor_{kind}", "name": "editor"}]
        (tool,) = AnthropicMessages().read({"messages": HI, "tools": tools}).tools
        assert f"`insert` puts {inserted}" in tool["description"]
        assert ("insert_text" in tool["parameters"]["properties"]) == (inserted == "`insert_text`")


def test_tools_that_a_server_runs_are_left_out() -> None:
    kinds = ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "tool_search_tool_regex_20251119"]
    tools = [*({"type": kind, "name": "x"} for kind in kinds), {"type": 7, "name": "x"}, ADD_ANTHROPIC]
    call = AnthropicMessages().read({"messages": HI, "tools": tools})
    assert [tool["name"] for tool in call.tools] == ["add"]


async def test_an_agent_with_a_shell_records_one_chain() -> None:
    async with house([call_text("bash", '{"command":  "ls"}'), "Done."]) as h, h.anthropic(await h.session()) as client:
        tools = [{"type": "bash_20250124", "name": "bash"}]
        asked = {"model": "m", "max_tokens": 500, "tools": tools}
        reply = await client.messages.create(messages=HI, **asked)
        assert (reply.stop_reason, reply.content[0].input) == ("tool_use", {"command": "ls"})
        result = {"type": "tool_result", "tool_use_id": reply.content[0].id, "content": "a.txt"}
        history = [*HI, {"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
        await client.messages.create(messages=history, **asked)
        assert len(h.chains()) == 1


async def test_a_typed_tool_without_a_name_is_left_out() -> None:
    desk = await Desk().open()
    body = json.dumps({"messages": HI, "tools": [{"type": "bash_20250124"}, {"name": None}]})
    status, _ = await desk.ask("/session-1/v1/messages", body.encode())
    assert status == 200
    assert desk.sessions.find("session-1").recorder.tools == ()
