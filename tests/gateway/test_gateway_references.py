"""Requests that name what was said before instead of repeating it (Responses): the model is shown all of it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from gateway_house import ADD_RESPONSES, Desk, House, house
from two_tool_turns import SCRIPT, check_one_chain, result_of

from loopwright.gateway.dialects import Responses
from loopwright.types import Message

PATH = "/session-1/v1/responses"


def output_of(response: httpx.Response, streamed: bool) -> list[dict[str, Any]]:
    """The items of an answer, as a client gathers them."""
    if not streamed:
        return list(response.json()["output"])
    lines = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    return [line["item"] for line in lines if line["type"] == "response.output_item.done"]


async def two_tool_turns(h: House, streamed: bool, named: set[str]) -> list[dict[str, Any]]:
    """An agent that sends the ids of those items whose type is in `named`, as Vercel's AI SDK does."""
    said: list[dict[str, Any]] = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Add."}]
    for _ in SCRIPT:
        response = await h.post(PATH, {"input": said, "tools": [ADD_RESPONSES], "stream": streamed})
        assert response.status_code == 200, response.text
        output = output_of(response, streamed)
        said += [
            {"type": "item_reference", "id": item["id"]} if item["type"] in named else dict(item) for item in output
        ]
        said += [
            {"type": "function_call_output", "call_id": item["call_id"], "output": result_of(item["arguments"])}
            for item in output
            if item["type"] == "function_call"
        ]
    return output


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("named", [{"message"}, {"function_call"}, {"message", "function_call"}])
async def test_items_that_are_named_are_as_good_as_sent(streamed: bool, named: set[str]) -> None:
    async with house(SCRIPT) as h:
        await h.session()
        last = await two_tool_turns(h, streamed, named)
        assert last[-1]["content"][0]["text"] == SCRIPT[-1]
        check_one_chain(h)


def test_all_parts_of_an_answer_can_be_named() -> None:
    calls = tuple({"id": f"c{n}", "name": "add", "arguments": f'{{"a": {n}}}'} for n in range(2))
    said: Message = {"role": "assistant", "content": "Well.", "reasoning": "Hm.", "tool_calls": calls}
    names = ["rs_abc_0", "msg_abc_1", "fc_abc_0", "fc_abc_1", "msg_abc_4"]
    items = [{"type": "item_reference", "id": name} for name in names]
    call = Responses().read({"input": [{"role": "user", "content": "Hi"}, *items]}, {"abc": said}.get)
    assert call.messages[1] == said


@pytest.mark.parametrize("name", ["msg_gone_0", "", "fc_" + "9" * 9, "fc__" + "9" * 5000, "user-item"])
async def test_items_that_were_never_given_are_refused(name: str) -> None:
    desk = await Desk().open()
    body = {"input": [{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": name}]}
    status, answer = await desk.ask(PATH, json.dumps(body).encode())
    assert status == 404
    assert json.loads(answer)["error"]["param"] == "input[1]"
    assert not desk.engine.requests


@pytest.mark.parametrize("field", [{"conversation": "conv_1"}, {"prompt": {"id": "pmpt_1"}}])
async def test_prompts_that_are_kept_elsewhere_are_refused(field: dict[str, Any]) -> None:
    desk = await Desk().open()
    status, answer = await desk.ask(PATH, json.dumps({"input": "Hi", **field}).encode())
    assert status == 400
    assert b"this server keeps none" in answer
