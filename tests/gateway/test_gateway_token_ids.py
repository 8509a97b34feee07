"""`return_token_ids`: a client gets the ids that the engine received and sampled, in the shape of vLLM's API."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gateway_house import ADD, House, house
from two_tool_turns import QUESTION, SCRIPT, check_one_chain, result_of

from loopwright.gateway.store import SqliteStore

ASKED: dict[str, Any] = {"model": "any", "tools": [ADD], "extra_body": {"return_token_ids": True}}
PATH = "/session-1/v1/chat/completions"
Ids = tuple[tuple[int, ...], tuple[int, ...]]


async def whole(client: Any, messages: list[Any]) -> tuple[Any, Ids]:
    reply = await client.chat.completions.create(messages=messages, **ASKED)
    return reply.choices[0].message, (tuple(reply.prompt_token_ids), tuple(reply.choices[0].token_ids))


async def streamed(client: Any, messages: list[Any]) -> tuple[Any, Ids]:
    prompts, sampled = list[list[int]](), list[int]()
    async with client.chat.completions.stream(messages=messages, **ASKED) as stream:
        async for event in stream:
            if event.type == "chunk":
                prompts += [ids for ids in [getattr(event.chunk, "prompt_token_ids", None)] if ids is not None]
                for choice in event.chunk.choices:
                    sampled += getattr(choice, "token_ids", ())
        (prompt,) = prompts
        return (await stream.get_final_completion()).choices[0].message, (tuple(prompt), tuple(sampled))


@pytest.mark.parametrize("ask", [whole, streamed])
async def test_a_client_collects_the_ids_of_its_chain(ask: Any) -> None:
    async with house(SCRIPT) as h, h.openai(await h.session()) as client:
        messages: list[Any] = list(QUESTION)
        collected: list[Ids] = []
        for _ in SCRIPT:
            message, ids = await ask(client, messages)
            collected.append(ids)
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or ():
                result = result_of(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        check_one_chain(h)
        assert collected == [(request.prompt_ids, generation.ids) for request, generation in h.engine.log]


async def test_every_sample_tells_its_own_ids() -> None:
    async with house(lambda request: f"Seed {request.sampling.seed}.") as h:
        await h.session()
        told = (await h.post(PATH, {"messages": QUESTION, "n": 3, "return_token_ids": True})).json()
        sampled = {generation.ids for _, generation in h.engine.log}
        assert {tuple(choice["token_ids"]) for choice in told["choices"]} == sampled
        assert len(sampled) == 3
        assert tuple(told["prompt_token_ids"]) == h.engine.log[0][0].prompt_ids


async def test_nobody_else_gets_ids() -> None:
    async with house(SCRIPT) as h:
        await h.session()
        told = (await h.post(PATH, {"messages": QUESTION})).json()
        assert "prompt_token_ids" not in told
        assert "token_ids" not in told["choices"][0]
        refused = await h.post(PATH, {"messages": QUESTION, "return_token_ids": "yes"})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "return_token_ids"


@pytest.mark.parametrize("path", ["responses", "messages"])
async def test_apis_that_have_no_place_for_ids_list_the_wish(path: str) -> None:
    async with house(SCRIPT) as h:
        await h.session()
        body = {"messages": QUESTION[1:], "input": QUESTION, "max_tokens": 100, "return_token_ids": True}
        assert (await h.post(f"/session-1/v1/{path}", body)).status_code == 200
        (wishes,) = (await h.http.get("/sessions/session-1")).json()["wishes"]
        assert wishes["others"]["return_token_ids"] is True


def ids_of(told: Mapping[str, Any]) -> Any:
    return told["id"], told["prompt_token_ids"], told["choices"][0]["token_ids"], told["choices"][0]["logprobs"]


async def test_a_restarted_gateway_gives_a_retry_the_same_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"messages": QUESTION, "tools": [ADD], "return_token_ids": True, "logprobs": True}

    async def ask(h: House) -> Any:
        return ids_of((await h.post(PATH, body, **{"x-stainless-retry-count": "1"})).json())

    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(SCRIPT, store=store) as h:
        await h.session()
        monkeypatch.setattr("loopwright.gateway.exchange.Exchange.delivered", lambda *lost: None)
        first = await ask(h)
    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(SCRIPT, store=store) as h:
        assert await ask(h) == first
        assert h.engine.log == []
