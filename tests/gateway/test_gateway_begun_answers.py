"""An answer that the agent begins: its words are context and not trained, and the model goes on from them exactly."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from gateway_house import ADD, ADD_ANTHROPIC, Desk, House, call_text, checked_chains, house, renderer
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.core.chains import turns_of
from loopwright.gateway.store import SqliteStore
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import ChainStart

CHAT, MESSAGES = "/session-1/v1/chat/completions", "/session-1/v1/messages"
GOES_ON = {"continue_final_message": True, "add_generation_prompt": False}
USER = {"role": "user", "content": "Add 1 and 2, as JSON."}
words = st.text(st.characters(codec="utf-8", exclude_characters="\r<>|", exclude_categories=("Cs", "Cc")), max_size=12)
begun = (words | st.sampled_from(["<|im_end|>", "<|im_", "{", " \n", "<tool_call>"])).filter(bool)


def asked(path: str, history: list[Any], begun: str) -> dict[str, Any]:
    messages = [*history, {"role": "assistant", "content": begun}]
    if path == MESSAGES:
        return {"messages": messages, "tools": [ADD_ANTHROPIC], "max_tokens": 1000}
    return {"messages": messages, "tools": [ADD], **GOES_ON}


def said_in(path: str, told: dict[str, Any]) -> str:
    if path == MESSAGES:
        return "".join(block["text"] for block in told["content"] if block["type"] == "text")
    return str(told["choices"][0]["message"]["content"] or "")


async def talk(path: str, turns: list[tuple[str, str]]) -> Any:
    desk = await Desk([said for _, said in turns]).open()
    history: list[Any] = [USER]
    for beginning, said in turns:
        status, answer = await desk.ask(path, json.dumps(asked(path, history, beginning)).encode())
        assert status == 200, answer
        assert said_in(path, json.loads(answer)) == said
        prompt = desk.engine.log[-1][0].prompt_ids
        own = renderer().begin(beginning)
        assert own is not None
        assert prompt[len(prompt) - len(own) :] == own
        assert renderer().text(own) == beginning
        assert not set(own) & set(tiny_tokenizer().all_special_ids)
        history += [{"role": "assistant", "content": beginning + said}, {"role": "user", "content": "Go on."}]
    recorder = desk.sessions.find("session-1").recorder
    chains = checked_chains(recorder, desk.engine, "session-1")
    written = [message["content"] for message in recorder.conversation(len(recorder) - 1)]
    assert written[1::2] == [beginning + said for beginning, said in turns]
    return [(chain.ids.tolist(), chain.mask.tolist()) for chain in chains]


@settings(max_examples=60)
@given(st.lists(st.tuples(begun, words), min_size=1, max_size=3))
def test_both_apis_give_the_same_single_chain(turns: list[tuple[str, str]]) -> None:
    chat, messages = (asyncio.run(talk(path, turns)) for path in (CHAT, MESSAGES))
    assert len(chat) == 1
    assert chat == messages


async def test_the_anthropic_sdk_solves_a_task_whose_answers_it_begins() -> None:
    script = ('": 3}', "so it is 3. " + call_text("add", '{"a": 1,  "b": 2}'), "3, as said.")
    async with house(script) as h, h.anthropic(await h.session()) as client:
        history: list[Any] = [USER]
        stops = []
        for beginning in ('{"sum', "I think ", "It is "):
            opened = [*history, {"role": "assistant", "content": beginning}]
            reply = await client.messages.create(model="any", max_tokens=1000, messages=opened, tools=[ADD_ANTHROPIC])
            stops.append(reply.stop_reason)
            blocks: list[Any] = [block.model_dump(exclude_none=True) for block in reply.content]
            blocks[0]["text"] = beginning + blocks[0]["text"]
            history.append({"role": "assistant", "content": blocks})
            results = [
                {"type": "tool_result", "tool_use_id": block["id"], "content": "3"}
                for block in blocks
                if block["type"] == "tool_use"
            ]
            history.append({"role": "user", "content": results or "Are you sure?"})
        assert stops == ["end_turn", "tool_use", "end_turn"]
        (chain,) = h.chains()
        assert chain.start is ChainStart.FIRST
        assert [turn.ids for turn in turns_of(chain)] == [generation.ids for _, generation in h.engine.log]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_streamed_answer_begins_after_what_the_agent_wrote(path: str) -> None:
    async with house(['": 3}']) as h:
        await h.session()
        told = (await h.post(path, {**asked(path, [USER], '{"sum'), "stream": True})).text
        events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: {")]
        if path == MESSAGES:
            texts = [one["delta"].get("text", "") for one in events if one["type"] == "content_block_delta"]
        else:
            texts = [choice["delta"].get("content", "") for one in events for choice in one["choices"]]
        assert "".join(texts) == '": 3}'


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_restarted_gateway_gives_a_retry_its_answer_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    retry = {"x-stainless-retry-count": "1"}

    async def ask(h: House) -> Any:
        return (await h.post(path, asked(path, [USER], "It is"), **retry)).json()

    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house([" 3."], store=store) as h:
        await h.session()
        with monkeypatch.context() as patch:
            patch.setattr("loopwright.gateway.exchange.Exchange.delivered", lambda *lost: None)
            first = await ask(h)
    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house([" 4.", " 5."], store=store) as h:
        # Another beginning is another question.
        other = (await h.post(path, asked(path, [USER], "It was"), **retry)).json()
        assert said_in(path, other) == " 4."
        again = await ask(h)
        assert (again["id"], said_in(path, again)) == (first["id"], " 3.")
        grown = [USER, {"role": "assistant", "content": "It is 3."}, {"role": "user", "content": "Sure?"}]
        assert (await h.post(path, asked(path, grown, "Yes,"))).status_code == 200
        assert h.recorder().starts == [ChainStart.FIRST, ChainStart.BRANCH]


async def test_what_the_agent_wrote_is_no_drift() -> None:
    async with house([" three."]) as h:
        await h.session()
        await h.post(CHAT, asked(CHAT, [USER], "It is"))
        drift = (await h.http.post("/sessions/session-1/complete")).json()["drift"]
        assert drift["recorded"] == len(h.engine.log[0][1].ids)
        # The engine writes byte by byte, which no tokenizer does.
        assert drift["invented"] < len(h.engine.log[0][1].ids)


BROKEN: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [USER], **GOES_ON}),
    (CHAT, {"messages": [USER, {"role": "assistant", "content": "a"}], "continue_final_message": True}),
    (CHAT, {"messages": [USER], "add_generation_prompt": False}),
    (CHAT, {"messages": [{"role": "assistant", "content": "a"}], **GOES_ON}),
    (MESSAGES, {"messages": [{"role": "assistant", "content": "a"}]}),
    (CHAT, {**asked(CHAT, [USER], "a"), "response_format": {"type": "json_object"}}),
    (
        MESSAGES,
        {"messages": [USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]},
    ),
    (MESSAGES, {"messages": [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}]}]}),
]


@pytest.mark.parametrize(("path", "body"), BROKEN)
async def test_what_cannot_be_gone_on_from_is_refused(path: str, body: dict[str, Any]) -> None:
    async with house(["never"]) as h:
        await h.session()
        told = await h.post(path, body)
        assert told.status_code == 400, told.text
        assert ("type" in told.json()) == (path == MESSAGES)
        assert h.engine.log == []


async def test_an_assistants_message_at_the_end_of_a_chat_is_a_finished_turn_unless_the_agent_says_so() -> None:
    async with house(["More."]) as h:
        await h.session()
        finished = [USER, {"role": "assistant", "content": "Done."}]
        await h.post(CHAT, {"messages": finished})
        await h.post(CHAT, {"messages": [USER, {**finished[1], "prefix": True}]})
        first, second = (renderer().text(request.prompt_ids) for request, _ in h.engine.log)
        assert second.endswith("Done.")
        assert not first.endswith("Done.")
