"""A reply that `max_tokens` cuts anywhere, inside a character or a tool call too, goes on in the same chain."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateway_house import ADD_ANTHROPIC, Desk, call_text, checked_chains, odd_ids

SAID = "Ünï 🙂 " + call_text("add", '{"b":2 , "a": "é\\n"}') + " and more"


def told(answer: bytes) -> list[dict[str, Any]]:
    """The blocks that a client of a stream has gathered."""
    blocks: list[dict[str, Any]] = []
    for event in (json.loads(line[6:]) for line in answer.decode().splitlines() if line.startswith("data: ")):
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "partial": ""})
        elif event["type"] == "content_block_delta" and event["delta"]["type"] == "text_delta":
            blocks[-1]["text"] += event["delta"]["text"]
        elif event["type"] == "content_block_delta":
            blocks[-1]["partial"] += event["delta"]["partial_json"]
    return [{**block, "input": json.loads(block["partial"] or "{}")} for block in blocks]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_reply_goes_on_wherever_it_was_cut(streamed: bool) -> None:
    for cut in range(1, len(odd_ids(SAID)) + 1, 4):
        desk = await Desk([SAID, "Fine."]).open()
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
        for limit in (cut, 500):
            body = {"messages": messages, "tools": [ADD_ANTHROPIC], "max_tokens": limit, "stream": streamed}
            status, answer = await desk.ask("/session-1/v1/messages", json.dumps(body).encode())
            assert status == 200
            blocks = told(answer) if streamed else json.loads(answer)["content"]
            called = [block["id"] for block in blocks if block["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": id, "content": "3", "is_error": True} for id in called]
            messages.append({"role": "assistant", "content": blocks})
            messages.append({"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]})
        assert len(checked_chains(desk.sessions.find("session-1").recorder, desk.engine, "session-1")) == 1, cut
