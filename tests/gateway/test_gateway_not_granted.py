"""What agents ask for and do not get: it is a 400, or listed with the wishes of a session, and never only dropped."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_house import house

HI = [{"role": "user", "content": "Hi"}]
CONTENTS = [{"parts": [{"text": "Hi"}]}]
GENERATE = "v1beta/models/m:generateContent"


@pytest.mark.parametrize(
    ("path", "body", "listed"),
    [
        ("v1/chat/completions", {"messages": HI, "audio": {"voice": "a"}, "frobnicate": 0}, ["audio", "frobnicate"]),
        ("v1/completions", {"prompt": "Hi", "use_beam_search": True}, ["use_beam_search"]),
        ("v1/responses", {"input": "Hi", "n": 4}, ["n"]),
        ("v1/responses/compact", {"input": "Hi", "n": 4}, ["n"]),
        (
            "v1/messages",
            {"messages": HI, "max_tokens": 9, "container": "c", "mcp_servers": [{}], "top_logprobs": 3},
            ["container", "mcp_servers", "top_logprobs"],
        ),
        (
            GENERATE,
            {"contents": CONTENTS, "return_token_ids": True, "generationConfig": {"audioTimestamp": True}},
            ["returnTokenIds", "generationConfig.audioTimestamp"],
        ),
    ],
)
async def test_unknown_parameters_are_listed_by_name(path: str, body: dict[str, Any], listed: list[str]) -> None:
    async with house(["Hello."]) as h:
        await h.session()
        assert (await h.post(f"/session-1/{path}", body)).status_code == 200
        (wishes,) = (await h.http.get("/sessions/session-1")).json()["wishes"]
        assert wishes["others"]["ignored"] == listed


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("v1/chat/completions", {"messages": HI, "user": "u", "store": False, "metadata": {}, "unknown": None}),
        ("v1/responses", {"input": "Hi", "prompt_cache_key": "k", "include": []}),
        ("v1/messages", {"messages": HI, "max_tokens": 9, "metadata": {"user_id": "u"}}),
        (GENERATE, {"contents": CONTENTS, "generationConfig": {"topK": 3}}),
    ],
)
async def test_what_changes_no_answer_is_not_listed(path: str, body: dict[str, Any]) -> None:
    async with house(["Hello."]) as h:
        await h.session()
        assert (await h.post(f"/session-1/{path}", body)).status_code == 200
        told = (await h.http.get("/sessions/session-1")).json()["wishes"]
        assert all("ignored" not in wishes.get("others", {}) for wishes in told)


async def test_a_request_of_many_odd_names_is_listed_within_bounds() -> None:
    async with house(["Hello."]) as h:
        await h.session()
        odd = {f"{number:03}{'x' * 200}": 1 for number in range(500)}
        assert (await h.post("/session-1/v1/chat/completions", {"messages": HI, **odd})).status_code == 200
        (wishes,) = (await h.http.get("/sessions/session-1")).json()["wishes"]
        assert [len(name) for name in wishes["others"]["ignored"]] == [80] * 20


async def test_parts_of_an_answer_that_are_not_included_are_listed() -> None:
    async with house(["Hello."]) as h:
        await h.session()
        wanted = ["message.output_text.logprobs", "reasoning.encrypted_content"]
        said = await h.post("/session-1/v1/responses", {"input": "Hi", "include": wanted})
        assert said.json()["output"][0]["content"][0]["logprobs"]
        (wishes,) = (await h.http.get("/sessions/session-1")).json()["wishes"]
        assert wishes["others"] == {"include": ["reasoning.encrypted_content"]}


async def test_a_summary_has_no_form_and_lists_what_was_asked() -> None:
    async with house(["Hello."]) as h:
        await h.session()
        asked = {"text": {"format": {"type": "json_object"}}, "tool_choice": "required"}
        assert (await h.post("/session-1/v1/responses/compact", {"input": "Hi", **asked})).status_code == 200
        (wishes,) = (await h.http.get("/sessions/session-1")).json()["wishes"]
        assert wishes["others"] == {**asked, "compacts": True}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("v1/chat/completions", {"messages": HI, "n": 129}, "n: 129 are too many"),
        ("v1/completions", {"prompt": "Hi", "n": 10**9}, "n: 1000000000 are too many"),
        (
            GENERATE,
            {"contents": CONTENTS, "generationConfig": {"candidateCount": 9}},
            "candidateCount: 9 are too many",
        ),
    ],
)
async def test_more_samples_than_a_call_may_have_are_refused(path: str, body: dict[str, Any], words: str) -> None:
    async with house(["Never."]) as h:
        await h.session()
        said = await h.post(f"/session-1/{path}", body)
        assert (said.status_code, words in said.text) == (400, True)
        assert not h.engine.log
