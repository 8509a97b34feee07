"""Responses that were given: what they answered can be listed, and they can be deleted without losing a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from gateway_house import ADD_RESPONSES, call_text, house

from loopwright.gateway.store import SqliteStore

PATH = "/session-1/v1/responses"
SCRIPT = ("Let me see. " + call_text("add", '{"a":  1}'), "It is 3.")


async def test_the_input_of_a_response_is_listed_page_by_page() -> None:
    async with house(SCRIPT) as h, h.openai(await h.session()) as client:
        same: Any = {"model": "any", "instructions": "Use tools.", "tools": [ADD_RESPONSES]}
        first = await client.responses.create(input="Add.", **same)
        call = first.output[-1]
        assert call.type == "function_call"
        result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "3"}]
        second = await client.responses.create(input=result, previous_response_id=first.id, **same)
        listed = [item async for item in client.responses.input_items.list(second.id, order="asc", limit=2)]
        kinds = [item.type for item in listed]
        assert kinds == ["message", "message", "function_call", "function_call_output"]
        assert [item.id for item in await _page(client, second.id)] == [item.id for item in reversed(listed)]
        # What is listed is what the model read: sent again, it continues the same chain.
        again: Any = [item.to_dict() for item in listed]
        more: Any = {"role": "user", "content": "Sure?"}
        await client.responses.create(input=[*again, *second.output, more], **same)
        assert h.recorder().starts == ["first"]


async def _page(client: openai.AsyncOpenAI, id: str) -> Any:
    return (await client.responses.input_items.list(id)).data


@pytest.mark.parametrize("asked", ["limit=0", "limit=x", "limit=101", "order=up", "after=nobody"])
async def test_a_page_that_cannot_be_is_refused(asked: str) -> None:
    async with house(SCRIPT) as h:
        await h.session()
        told = (await h.post(PATH, {"input": "Add."})).json()
        refused = await h.http.get(f"{PATH}/{told['id']}/input_items?{asked}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, asked.partition("=")[0])
        assert (await h.http.get(f"{PATH}/resp_gone/input_items")).status_code == 404


async def test_a_deleted_response_cannot_be_named_and_stays_recorded(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(SCRIPT, store=store) as h:
        async with h.openai(await h.session()) as client:
            given = await client.responses.create(model="any", input="Add.")
            await client.responses.delete(given.id)
        chains = h.chains()
    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(SCRIPT, store=store) as h:
        assert h.recorder().chains() == chains
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
            assert (await h.http.request(method, f"{PATH}/{given.id}{path}")).status_code == 404
        goes_on = await h.post(PATH, {"input": "More.", "previous_response_id": given.id})
        assert (goes_on.status_code, goes_on.json()["error"]["code"]) == (400, "previous_response_not_found")
        named = await h.post(PATH, {"input": [{"type": "item_reference", "id": given.output[0].id}]})
        assert named.status_code == 404
