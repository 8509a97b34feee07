"""Gemini's API: what it streams, how it refuses, and that a restarted gateway goes on with its conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gateway_house import ADD_GEMINI, House, house, renderer
from two_tool_turns import SCRIPT, check_one_chain, result_of

from loopwright.gateway.dialects import Gemini
from loopwright.gateway.session import SessionSettings
from loopwright.gateway.store import SqliteStore
from loopwright.types import ChainStart

PATH = "/session-1/v1beta/models/any"
ASKED: list[Any] = [{"role": "user", "parts": [{"text": "Add 1 and 2."}]}]
TOOLS: list[Any] = [{"functionDeclarations": [ADD_GEMINI]}]


def body(contents: list[Any], **more: Any) -> dict[str, Any]:
    return {"contents": contents, "tools": TOOLS, **more}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def parts_of(response: dict[str, Any]) -> list[Any]:
    return list(response["candidates"][0]["content"]["parts"])


async def test_an_agent_that_streams_records_one_chain() -> None:
    async with house(SCRIPT) as h:
        await h.session()
        contents = list(ASKED)
        for _ in SCRIPT:
            told = await h.post(f"{PATH}:streamGenerateContent?alt=sse", body(contents))
            said = events(told.text)
            assert [one["candidates"][0].get("finishReason") for one in said][-1] == "STOP"
            assert said[-1]["usageMetadata"]["candidatesTokenCount"] == len(h.engine.log[-1][1].ids)
            parts = [part for one in said for part in parts_of(one)]
            contents.append({"role": "model", "parts": parts})
            calls = [part["functionCall"] for part in parts if "functionCall" in part]
            results = [
                {"functionResponse": {"id": call["id"], "response": {"output": result_of(call["args"])}}}
                for call in calls
            ]
            contents.append({"role": "user", "parts": results})
        assert "".join(part["text"] for part in parts) == SCRIPT[-1]
        check_one_chain(h)


async def test_candidates_are_samples_and_the_last_content_of_the_model_begins_the_answer() -> None:
    async with house(lambda request: f"Seed {request.sampling.seed}.") as h:
        await h.session()
        contents = [*ASKED, {"role": "model", "parts": [{"text": "It is"}]}]
        told = (await h.post(f"{PATH}:generateContent", body(contents, generationConfig={"candidateCount": 2}))).json()
        assert len({one["content"]["parts"][0]["text"] for one in told["candidates"]}) == 2
        assert renderer().text(h.engine.log[0][0].prompt_ids).endswith("It is")


async def test_tokens_are_counted_and_wishes_are_listed() -> None:
    async with house(SCRIPT) as h:
        await h.session()
        wishes = {"generationConfig": {"responseMimeType": "application/json", "maxOutputTokens": 99, "topK": 3}}
        asked = {**body(ASKED, **wishes), "tools": [*TOOLS, {"googleSearch": {}}]}
        counted = (await h.post(f"{PATH}:countTokens", {"generateContentRequest": asked})).json()
        told = (await h.post(f"{PATH}:generateContent", asked)).json()
        assert counted["totalTokens"] == told["usageMetadata"]["promptTokenCount"] == len(h.engine.log[0][0].prompt_ids)
        (listed,) = (await h.http.get("/sessions/session-1")).json()["wishes"]
        assert listed == {
            "max_tokens": 99,
            "top_k": 3,
            "others": {"responseMimeType": "application/json", "tools_left_out": ["googleSearch"]},
        }


def test_thoughts_and_schemas_in_googles_form_are_read() -> None:
    contents = [
        *ASKED,
        {
            "role": "model",
            "parts": [{"text": "Hm.", "thought": True}, {"text": "3."}, {"executableCode": {"code": "1"}}],
        },
        {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "aaaa"}}]},
    ]
    declared = {"name": "f", "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}}
    call = Gemini().read({"contents": contents, "tools": [{"functionDeclarations": [declared]}]})
    assert call.messages[1] == {"role": "assistant", "content": '3.{"code":"1"}', "reasoning": "Hm."}
    assert call.messages[2]["content"] == "[image omitted: image/png]"
    assert call.tools[0]["parameters"] == {"type": "object", "properties": {"a": {"type": "string"}}}


BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("generateContent", {}),
    ("generateContent", {"contents": [{"role": "judge", "parts": []}]}),
    ("generateContent", {"contents": [{"role": "user", "parts": [{"fileData": {"fileUri": "u"}}]}]}),
    ("generateContent", {"contents": ASKED, "cachedContent": "caches/1"}),
    ("generateContent", {"contents": ASKED, "generationConfig": {"temperature": "hot"}}),
    ("generateContent", {"contents": ASKED, "generationConfig": 3}),
    ("streamGenerateContent", {"contents": ASKED}),
    ("countTokens", {"generateContentRequest": 3}),
]


@pytest.mark.parametrize(("action", "asked"), BROKEN)
async def test_errors_speak_geminis_dialect(action: str, asked: dict[str, Any]) -> None:
    async with house(SCRIPT) as h:
        await h.session()
        told = await h.post(f"{PATH}:{action}", asked)
        assert told.status_code == 400, told.text
        assert told.json()["error"]["status"] == "INVALID_ARGUMENT"
        assert h.engine.log == []


async def test_a_sessions_key_in_geminis_header_opens_that_session_only() -> None:
    async with house(SCRIPT) as h:
        _, key = h.gateway.sessions.create("session-1", SessionSettings())
        url = f"{PATH}:generateContent"
        for sent, status, name in ((key, 200, None), ("wrong", 401, "UNAUTHENTICATED")):
            told = await h.http.post(url, json=body(ASKED), headers={"authorization": "", "x-goog-api-key": sent})
            assert told.status_code == status
            assert name is None or told.json()["error"]["status"] == name


async def test_a_restarted_gateway_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retry = {"x-stainless-retry-count": "1"}

    async def ask(h: House, contents: list[Any]) -> dict[str, Any]:
        return dict((await h.post(f"{PATH}:generateContent", body(contents), **retry)).json())

    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(SCRIPT[:1], store=store) as h:
        await h.session()
        with monkeypatch.context() as patch:
            patch.setattr("loopwright.gateway.exchange.Exchange.delivered", lambda *lost: None)
            first = await ask(h, ASKED)
    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(SCRIPT[2:], store=store) as h:
        assert await ask(h, ASKED) == first
        called = parts_of(first)[1]["functionCall"]
        result = {"functionResponse": {"name": called["name"], "response": {"output": "3"}}}
        grown = [*ASKED, first["candidates"][0]["content"], {"role": "user", "parts": [result]}]
        await ask(h, grown)
        assert h.recorder().starts == [ChainStart.FIRST]
