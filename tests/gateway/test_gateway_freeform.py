"""Freeform tools, such as Codex's `apply_patch`: the client gets plain text, and the chain stays exact."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from gateway_house import Desk, call_text, checked_chains, house
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.gateway.freeform import input_of
from loopwright.gateway.store import SqliteStore

GRAMMAR = "start: begin_patch hunk+ end_patch"
PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
}
CHAT_PATCH = {
    "type": "custom",
    "custom": {
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": GRAMMAR}},
    },
}
TEXT = '*** Begin Patch\n*** Add File: "a b".txt\n+grüße 🙂\\n\n*** End Patch'
SCRIPT = (
    f"I edit. {call_text('apply_patch', json.dumps({'input': TEXT}, indent=1))}",
    call_text("apply_patch", '{"path":  "a", "input": 3}'),
    "Done.",
)
inputs = st.text(st.characters(codec="utf-8", exclude_characters="\r<>|", exclude_categories=("Cs", "Cc")), max_size=20)
written = st.builds(
    lambda text, escape: json.dumps({"input": text}, ensure_ascii=escape), inputs, st.booleans()
) | st.dictionaries(inputs, inputs | st.integers(-9, 9), max_size=2).map(json.dumps)


class ResponsesAgent:
    path = "/session-1/v1/responses"

    def __init__(self) -> None:
        self.history: list[Any] = [{"role": "user", "content": "Edit."}]

    def body(self) -> dict[str, Any]:
        return {"input": self.history, "tools": [PATCH], "store": False}

    def hear(self, reply: dict[str, Any]) -> list[str]:
        self.history += reply["output"]
        calls = [item for item in reply["output"] if item["type"] == "custom_tool_call"]
        for call in calls:
            output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done!"}
            self.history.append(output)
        return [call["input"] for call in calls]


class ChatAgent:
    path = "/session-1/v1/chat/completions"

    def __init__(self) -> None:
        self.history: list[Any] = [{"role": "user", "content": "Edit."}]

    def body(self) -> dict[str, Any]:
        return {"messages": self.history, "tools": [CHAT_PATCH]}

    def hear(self, reply: dict[str, Any]) -> list[str]:
        message = reply["choices"][0]["message"]
        self.history.append(message)
        calls = message.get("tool_calls", [])
        for call in calls:
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": "Done!"})
        return [call["custom"]["input"] for call in calls]


async def talk(agent: Any, script: list[str]) -> tuple[list[list[str]], list[tuple[list[int], list[bool]]]]:
    desk = await Desk(script).open()
    heard = []
    for _ in script:
        status, answer = await desk.ask(agent.path, json.dumps(agent.body()).encode())
        assert status == 200, answer
        heard.append(agent.hear(json.loads(answer)))
    chains = checked_chains(desk.sessions.find("session-1").recorder, desk.engine, "session-1")
    return heard, [(chain.ids.tolist(), chain.mask.tolist()) for chain in chains]


@settings(max_examples=60)
@given(st.lists(st.lists(written, min_size=1, max_size=2), min_size=1, max_size=3))
def test_both_apis_give_the_input_and_the_same_single_chain(turns: list[list[str]]) -> None:
    script = ["\n".join(call_text("apply_patch", arguments) for arguments in calls) for calls in turns]
    (heard, chains), (also, same) = (
        asyncio.run(talk(agent(), [*script, "Done."])) for agent in (ResponsesAgent, ChatAgent)
    )
    assert heard == also == [*([input_of(arguments) for arguments in calls] for calls in turns), []]
    assert len(chains) == 1
    assert chains == same


async def test_the_sdk_streams_a_custom_call() -> None:
    async with house(SCRIPT) as h, h.openai(await h.session()) as client:
        history: list[Any] = [{"role": "user", "content": "Edit."}]
        heard = []
        for _ in SCRIPT:
            async with client.responses.stream(model="any", input=history, tools=[PATCH]) as stream:
                growing = [event async for event in stream if event.type.startswith("response.custom_tool_call_input")]
                response = await stream.get_final_response()
            history += response.output
            for item in response.output:
                if item.type == "custom_tool_call":
                    heard.append(item.input)
                    assert [event.type.rpartition(".")[2] for event in growing] == ["delta", "done"]
                    history.append({"type": "custom_tool_call_output", "call_id": item.call_id, "output": "ok"})
        assert heard == [TEXT, '{"path":  "a", "input": 3}']
        (chain,) = h.chains()
        assert chain.sampled == sum(len(generation.ids) for _, generation in h.engine.log)


async def test_a_streamed_chat_completion_gives_the_whole_input() -> None:
    async with house(SCRIPT[:1]) as h, h.openai(await h.session()) as client:
        messages: list[Any] = [{"role": "user", "content": "Edit."}]
        tools: list[Any] = [CHAT_PATCH]
        said = []
        async for chunk in await client.chat.completions.create(
            model="any", messages=messages, tools=tools, stream=True
        ):
            said += [call.to_dict() for choice in chunk.choices for call in choice.delta.tool_calls or ()]
        assert [(call.get("type"), call["custom"]) for call in said] == [
            ("custom", {"name": "apply_patch", "input": ""}),
            (None, {"input": TEXT}),
        ]


async def test_the_model_is_told_the_grammar_and_the_session_says_that_it_is_not_enforced() -> None:
    async with house(SCRIPT) as h:
        await h.session()
        tools = [PATCH, {"type": "web_search"}, {"type": "namespace", "name": "mcp", "tools": []}]
        await h.post(ResponsesAgent.path, {"input": "Edit.", "tools": tools})
        (turn,) = h.recorder().turns
        assert GRAMMAR in turn.tools[0]["description"]
        (wishes,) = (await h.http.get("/sessions/session-1")).json()["wishes"]
        assert wishes["others"] == {
            "tools_left_out": ["namespace", "web_search"],
            "grammars_not_enforced": ["apply_patch"],
        }


@pytest.mark.parametrize("agent", [ResponsesAgent, ChatAgent])
async def test_a_restarted_gateway_goes_on_with_the_calls(tmp_path: Path, agent: Any) -> None:
    """The answers that it recorded are given again as they were, and the history continues them."""
    one = agent()
    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(SCRIPT[:1], store=store) as h:
        await h.session()
        first = await h.post(one.path, one.body(), **{"idempotency-key": "a"})
    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(SCRIPT[1:], store=store) as h:
        if agent is ResponsesAgent:
            again = (await h.http.get(f"/session-1/v1/responses/{first.json()['id']}")).json()
            assert again["output"] == first.json()["output"]
        one.hear(first.json())
        assert (await h.post(one.path, one.body())).status_code == 200
        assert len(h.recorder().chains()) == 1


async def test_a_custom_call_can_be_named_by_its_id() -> None:
    async with house(SCRIPT) as h:
        await h.session()
        agent = ResponsesAgent()
        told = (await h.post(agent.path, agent.body())).json()
        agent.hear(told)
        agent.history[1:-1] = [{"type": "item_reference", "id": item["id"]} for item in told["output"]]
        assert (await h.post(agent.path, agent.body())).status_code == 200
        assert len(h.chains()) == 1
