"""Completions without a chat template: texts and token ids that the model continues, recorded as exact chains."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from gateway_house import Desk, House, checked_chains, house, odd_ids, renderer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loopwright.core.chains import turns_of
from loopwright.gateway.store import SqliteStore
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import ChainStart

PATH = "/session-1/v1/completions"
words = st.text(st.characters(codec="utf-8", exclude_characters="\r<>|", exclude_categories=("Cs", "Cc")), max_size=12)
some = words.filter(bool)


async def talk(texts: list[tuple[str, str]], *, by_ids: bool) -> None:
    """An agent that sends all so far, and what it adds. As a text, its answers end with a stop text, which it keeps."""
    desk = await Desk([f"{said}#" for _, said in texts]).open()
    sent: Any = [] if by_ids else ""
    for added, said in texts:
        sent = [*sent, *renderer().plain(added)] if by_ids else sent + added
        body = {"prompt": sent, "stop": None if by_ids else "#", "max_tokens": 99, "return_token_ids": True}
        # Scripted engines look for no stop text; the token after it is what an engine would not have sampled.
        desk.engine._encode = odd_ids if by_ids else lambda text: odd_ids(text)[:-1]
        status, answer = await desk.ask(PATH, json.dumps(body).encode())
        assert status == 200, answer
        (choice,) = json.loads(answer)["choices"]
        assert choice["text"] == (f"{said}#" if by_ids else said)
        assert (tuple(choice["prompt_token_ids"]), tuple(choice["token_ids"])) == (
            desk.engine.log[-1][0].prompt_ids,
            desk.engine.log[-1][1].ids,
        )
        sent = [*sent, *choice["token_ids"]] if by_ids else f"{sent}{choice['text']}#"
    if by_ids:
        assert desk.engine.log[-1][0].prompt_ids == tuple(sent[: len(sent) - len(desk.engine.log[-1][1].ids)])
    (chain,) = checked_chains(desk.sessions.find("session-1").recorder, desk.engine, "session-1")
    assert [turn.ids for turn in turns_of(chain)] == [generation.ids for _, generation in desk.engine.log]


@pytest.mark.parametrize("by_ids", [False, True])
@settings(max_examples=40)
@given(texts=st.lists(st.tuples(some, words.filter(lambda text: "#" not in text)), min_size=1, max_size=4))
def test_a_text_that_grows_is_one_chain(by_ids: bool, texts: list[tuple[str, str]]) -> None:
    asyncio.run(talk([(f"{added} ", said) for added, said in texts], by_ids=by_ids))


asks = st.tuples(
    st.integers(0, 9), st.sampled_from(["", "\n", " Next", "\nNext"]), st.integers(1, 3), st.integers(1, 7)
)


async def ask_anywhere(asked: list[tuple[int, str, int, int]], *, by_ids: bool) -> None:
    """An agent that goes on from any earlier answer. Some answers differ only in space, or by their end token."""
    said = ["Yes", " Yes", "Yes", " Yes\n", "Yes\n"] * 6
    desk = await Desk(said).open()
    known: list[Any] = [[] if by_ids else ""]
    for place, added, n, most in asked:
        before = known[place % len(known)]
        more = f"{added}Q" if len(before) == 0 else added
        sent = [*before, *renderer().plain(more)] if by_ids else f"{before}{more}"
        body = {"prompt": sent, "n": n, "max_tokens": most, "return_token_ids": True}
        status, answer = await desk.ask(PATH, json.dumps(body).encode())
        assert status == 200, answer
        for choice in json.loads(answer)["choices"]:
            got = choice["prompt_token_ids"]
            assert (got if by_ids else renderer().text(got)) == sent
            known.append([*sent, *choice["token_ids"]] if by_ids else f"{sent}{choice['text']}")
    turns = desk.sessions.find("session-1").recorder.as_turns()
    asked_and_sampled = [(request.prompt_ids, generation.ids) for request, generation in desk.engine.log]
    assert sorted((turn.prompt_ids, turn.ids) for turn in turns) == sorted(asked_and_sampled)


@pytest.mark.parametrize("by_ids", [False, True])
@settings(max_examples=40, deadline=None)
@given(asked=st.lists(asks, min_size=1, max_size=6))
@example(asked=[(0, "", 2, 3), (0, "", 3, 7), (2, " Next", 1, 7), (1, "\nNext", 1, 7), (3, " Next", 2, 7)])
def test_the_engine_receives_what_the_agent_sent(by_ids: bool, asked: list[tuple[int, str, int, int]]) -> None:
    asyncio.run(ask_anywhere(asked, by_ids=by_ids))


@pytest.mark.parametrize("ends", [False, True])
async def test_an_end_token_is_kept_or_not_as_it_was_sent(ends: bool) -> None:
    async with house(["Yes", "Yes", "x"]) as h:
        await h.session()
        sent = []
        for most in (3, 9):
            told = (await h.post(PATH, {"prompt": "Q:", "max_tokens": most, "return_token_ids": True})).json()
            (choice,) = told["choices"]
            sent.append([*choice["prompt_token_ids"], *choice["token_ids"], 17])
        assert len(sent[1]) == len(sent[0]) + 1
        await h.post(PATH, {"prompt": sent[ends]})
        assert h.engine.log[-1][0].prompt_ids == tuple(sent[ends])


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_sdk_gets_its_completion(streamed: bool) -> None:
    async with house(["<tool_call> is text here."]) as h, h.openai(await h.session()) as client:
        asked: dict[str, Any] = {"model": "any", "prompt": "Once", "logprobs": 0, "max_tokens": 50}
        if streamed:
            texts = [
                choice.text
                async for chunk in await client.completions.create(**asked, stream=True)
                for choice in chunk.choices
            ]
            assert "".join(texts) == "<tool_call> is text here."
        else:
            told = await client.completions.create(**asked)
            (choice,) = told.choices
            assert (choice.text, choice.finish_reason) == ("<tool_call> is text here.", "stop")
            assert choice.logprobs is not None
            assert choice.logprobs.token_logprobs == list(h.engine.log[0][1].logprobs)
            assert told.usage is not None
            assert told.usage.prompt_tokens == len(renderer().plain("Once"))
        assert h.engine.log[0][0].prompt_ids == renderer().plain("Once")


async def test_an_answer_with_an_end_token_is_not_continued_as_text() -> None:
    """The agent's text does not show the end token, so the model must not see it there."""
    async with house(["Two.", "Three."]) as h:
        await h.session()
        for prompt in ("One, ", "One, Two. And "):
            assert (await h.post(PATH, {"prompt": prompt})).status_code == 200
            assert h.engine.log[-1][0].prompt_ids == renderer().plain(prompt)
        assert h.recorder().starts == [ChainStart.FIRST, ChainStart.SEPARATE]


async def test_chats_and_texts_are_different_conversations() -> None:
    async with house(["One."] * 3) as h:
        await h.session()
        await h.chat("session-1", [{"role": "user", "content": "Hi"}])
        await h.post(PATH, {"prompt": "Hi"})
        drift = (await h.http.post("/sessions/session-1/complete")).json()
        assert (drift["turns"], drift["starts"]) == (2, {"first": 1, "separate": 1})
        assert drift["drift"]["recorded"] == sum(len(generation.ids) for _, generation in h.engine.log)


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [[1], [2]]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [10**6]}, "prompt"),
    ({"prompt": "<|im_start|>user"}, "prompt"),
    ({"prompt": "a", "echo": True}, "echo"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "best_of": 3}, "best_of"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
]


@pytest.mark.parametrize(("body", "param"), BROKEN)
async def test_what_cannot_be_completed_is_refused(body: dict[str, Any], param: str) -> None:
    async with house(["Never."]) as h:
        await h.session()
        told = await h.post(PATH, body)
        assert (told.status_code, told.json()["error"]["param"]) == (400, param)
        assert h.engine.log == []


@pytest.mark.parametrize("prompt", ["One, ", [17, 18, 19]])
async def test_a_restarted_gateway_gives_a_retry_its_answer_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt: Any
) -> None:
    async def ask(h: House, prompt: Any) -> Any:
        body = {"prompt": prompt, "max_tokens": 3, "return_token_ids": True}
        return (await h.post(PATH, body, **{"x-stainless-retry-count": "1"})).json()

    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(["Two, three"], store=store) as h:
        await h.session()
        with monkeypatch.context() as patch:
            patch.setattr("loopwright.gateway.exchange.Exchange.delivered", lambda *lost: None)
            first = await ask(h, prompt)
    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(["five"], store=store) as h:
        assert await ask(h, prompt) == first
        (choice,) = first["choices"]
        assert choice["finish_reason"] == "length"
        grown = prompt + choice["text"] + " four, " if isinstance(prompt, str) else [*prompt, *choice["token_ids"], 20]
        await ask(h, grown)
        assert h.recorder().starts == [ChainStart.FIRST]
        asked = h.engine.log[0][0].prompt_ids
        assert asked[: len(choice["prompt_token_ids"]) + 3] == (*choice["prompt_token_ids"], *choice["token_ids"])


def test_a_text_begins_as_the_tokenizer_begins_texts() -> None:
    tokenizer = tiny_tokenizer()
    assert renderer().plain("One", opens=True) == tuple(tokenizer.encode("One", add_special_tokens=True))
