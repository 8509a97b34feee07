"""Arguments that JSON allows and its readers do not agree on: a client's echo of them is the same call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateway_house import ADD_ANTHROPIC, call_text, house

from loopwright.render.recording.fingerprint import fingerprint

ODD = [
    r'{"a": "\ud800"}',
    r'{"a": "x\udc00y \ud83d\ude00", "b": "\ud83d"}',
    '{"a": 1e400}',
    '{"a": [-1E999, 1]}',
    f'{{"a": {"9" * 400}}}',
]


@pytest.mark.parametrize("arguments", ODD)
async def test_a_call_that_was_not_streamed_keeps_its_chain(arguments: str) -> None:
    async with house([call_text("add", arguments), "Done."]) as h:
        session = await h.session()
        path = f"/{session}/v1/messages"
        body: dict[str, Any] = {"max_tokens": 999, "tools": [ADD_ANTHROPIC]}
        asked = {"role": "user", "content": "Add."}
        said = (await h.post(path, {**body, "messages": [asked]})).json()["content"]
        assert set(said[0]["input"]) == set(json.loads(arguments)), "the client sees the arguments"
        result = {"type": "tool_result", "tool_use_id": said[0]["id"], "content": "?"}
        talk = [asked, {"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
        assert (await h.post(path, {**body, "messages": talk})).status_code == 200
        assert len(h.chains()) == 1


def call(arguments: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": ({"id": "c", "name": "add", "arguments": arguments},)}


def test_what_javascript_makes_of_a_streamed_call_is_the_same_call() -> None:
    """It says null where a number is too large, and half a character is mended when it is read."""
    assert fingerprint(call('{"a": 1e400}')) == fingerprint(call('{"a":null}'))
    assert fingerprint(call(r'{"a": "\ud800"}')) == fingerprint(call('{"a":"\N{REPLACEMENT CHARACTER}"}'))
    assert fingerprint(call(r'{"a": "\ud800"}')) != fingerprint(call('{"a": "b"}'))
