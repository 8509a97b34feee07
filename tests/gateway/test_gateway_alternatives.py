"""`top_logprobs`: the likeliest tokens beside the sampled ones, in every dialect that has a place for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gateway_house import House, house
from torch_house import CONTEXT, torch_house

from loopwright.errors import AlternativesError
from loopwright.gateway.store import SqliteStore
from loopwright.ports import OnPart
from loopwright.testing.tiny import tiny_llama
from loopwright.types import GenerateRequest, Generation

HI: list[Any] = [{"role": "user", "content": "Hi"}]
PATHS = ["chat/completions", "completions", "responses"]
GENERATE = "v1beta/models/m:generateContent"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"), initializer_range=0.4, max_position_embeddings=CONTEXT)


def asked(path: str, top: Any, **more: Any) -> dict[str, Any]:
    if path == "completions":
        return {"prompt": "Hi", "logprobs": top, "max_tokens": 9, **more}
    if path == "responses":
        return {"input": "Hi", "top_logprobs": top, "max_output_tokens": 9, **more}
    return {"messages": HI, "logprobs": True, "top_logprobs": top, "max_tokens": 9, **more}


def told(path: str, body: Any) -> list[tuple[str, float, list[tuple[str, float]]]]:
    """Each sampled text with its logprob, and the likeliest ones."""
    if path == "completions":
        odds = body["choices"][0]["logprobs"]
        listed = [[(text, odds) for text, odds in likeliest.items()] for likeliest in odds["top_logprobs"]]
        return list(zip(odds["tokens"], odds["token_logprobs"], listed, strict=True))
    if path == "responses":
        (message,) = (item for item in body["output"] if item["type"] == "message")
        entries = message["content"][0]["logprobs"]
    else:
        entries = body["choices"][0]["logprobs"]["content"]
    return [
        (one["token"], one["logprob"], [(other["token"], other["logprob"]) for other in one["top_logprobs"]])
        for one in entries
    ]


def last_body(path: str, stream: str) -> Any:
    """What the last events of a stream say."""
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    if path == "responses":
        done = next(event for event in events if event["type"] == "response.output_item.done")
        assert done["item"] == events[-1]["response"]["output"][0]
        text = next(event for event in events if event["type"] == "response.output_text.done")
        assert text["logprobs"] == done["item"]["content"][0]["logprobs"]
        return events[-1]["response"]
    return next(event for event in events if event["choices"] and event["choices"][0].get("logprobs"))


@pytest.mark.parametrize("path", PATHS)
async def test_the_likeliest_tokens_are_told_whole_and_streamed(folder: Path, path: str) -> None:
    async with torch_house(folder) as h:
        for name in ("session-1", "session-2"):
            await h.session(name, seed=5)
        whole = await h.post(f"/session-1/v1/{path}", asked(path, 4))
        streamed = await h.post(f"/session-2/v1/{path}", asked(path, 4, stream=True))
        assert (whole.status_code, streamed.status_code) == (200, 200)
        said = told(path, whole.json())
        assert told(path, last_body(path, streamed.text)) == said
        (request, generation), _ = h.engine.log
        assert request.alternatives == 4
        pieces = h.gateway.exchange.offer.current().renderer.pieces(generation.ids)
        assert [text for text, _, _ in said] == list(pieces)
        assert [odds for _, odds, _ in said] == list(generation.logprobs)
        for (_, _, likeliest), exact in zip(said, generation.alternatives, strict=True):
            assert {odds for _, odds in exact} >= {odds for _, odds in likeliest[:1]}
            assert 1 <= len(likeliest) <= 5


@pytest.mark.parametrize("path", [GENERATE, "v1beta/models/m:streamGenerateContent?alt=sse"])
async def test_geminis_api_tells_them_in_its_own_words(folder: Path, path: str) -> None:
    config = {"responseLogprobs": True, "logprobs": 4, "maxOutputTokens": 9, "candidateCount": 2}
    body = {"contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": config}
    async with torch_house(folder) as h:
        await h.session(seed=5)
        said = await h.post(f"/session-1/{path}", body)
        assert said.status_code == 200
        last = said.text.strip().splitlines()[-1].removeprefix("data: ") if "stream" in path else said.text
        candidates = json.loads(last)["candidates"]
        sampled = {generation.logprobs: generation for _, generation in h.engine.log}
        assert len(candidates) == len(sampled) == 2
        for one in candidates:
            chosen = one["logprobsResult"]["chosenCandidates"]
            generation = sampled[tuple(token["logProbability"] for token in chosen)]
            assert one["avgLogprobs"] == pytest.approx(sum(generation.logprobs) / len(generation.ids))
            told = [each["candidates"] for each in one["logprobsResult"]["topCandidates"]]
            exact = [[odds for _, odds in likeliest] for likeliest in generation.alternatives]
            assert [[token["logProbability"] for token in each] for each in told] == exact
            pieces = h.gateway.exchange.offer.current().renderer.pieces(generation.ids)
            assert [token["token"] for token in chosen] == list(pieces)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"logprobs": 3}, "responseLogprobs: true"),
        ({"responseLogprobs": True, "logprobs": 21}, "logprobs: 21 are too many"),
        ({"responseLogprobs": "yes"}, "responseLogprobs: expected true or false"),
        ({"responseLogprobs": True, "logprobs": -1}, "logprobs: expected a whole number"),
    ],
)
async def test_odd_wishes_of_geminis_api_are_refused(config: dict[str, Any], words: str) -> None:
    async with house(["Never."]) as h:
        await h.session()
        body = {"contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": config}
        said = await h.post(f"/session-1/{GENERATE}", body)
        assert (said.status_code, words in said.text) == (400, True)
        assert not h.engine.log


async def test_geminis_api_tells_logprobs_only_if_they_are_asked_for() -> None:
    async with house(["Hello."] * 2) as h:
        await h.session()
        for config, told in (({}, set()), ({"responseLogprobs": True}, {"chosenCandidates"})):
            body = {"contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": config}
            (one,) = (await h.post(f"/session-1/{GENERATE}", body)).json()["candidates"]
            assert set(one.get("logprobsResult", {})) == told


@pytest.mark.parametrize("path", PATHS)
async def test_recorded_tokens_do_not_depend_on_it(folder: Path, path: str) -> None:
    async with torch_house(folder) as h:
        for name, top in (("session-1", 0), ("session-2", 20)):
            await h.session(name, seed=3)
            assert (await h.post(f"/{name}/v1/{path}", asked(path, top))).status_code == 200
        (one,), (other,) = h.chains("session-1"), h.chains("session-2")
        assert one == other


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("top", [21, -1, "3", 1.5, 10**20])
async def test_odd_numbers_are_refused(path: str, top: Any) -> None:
    async with house(["Never."]) as h:
        await h.session()
        said = await h.post(f"/session-1/v1/{path}", asked(path, top))
        field = "logprobs" if path == "completions" else "top_logprobs"
        assert (said.status_code, said.json()["error"]["param"]) == (400, field)
        assert not h.engine.log


async def test_a_chat_without_logprobs_has_no_place_for_them() -> None:
    async with house(["Never."]) as h:
        await h.session()
        said = await h.post("/session-1/v1/chat/completions", {"messages": HI, "top_logprobs": 3})
        assert (said.status_code, said.json()["error"]["param"]) == (400, "top_logprobs")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_cannot_tell_them_is_a_400(
    path: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(["Never."]) as h:
        await h.session()

        async def refuse(request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
            raise AlternativesError("this engine tells none", remedy="ask without")

        monkeypatch.setattr(h.engine, "generate", refuse)
        said = await h.post(f"/session-1/v1/{path}", asked(path, 3, stream=stream))
        field = "logprobs" if path == "completions" else "top_logprobs"
        assert (said.status_code, said.json()["error"]["param"]) == (400, field)
        assert len(h.recorder()) == 0


@pytest.mark.parametrize("path", PATHS)
async def test_an_engine_that_tells_none_without_a_word_is_a_400_too(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(["Hello."]) as h:
        await h.session()
        generate = h.engine.generate

        async def silent(request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
            return await generate(replace(request, alternatives=0), on_part)

        monkeypatch.setattr(h.engine, "generate", silent)
        said = await h.post(f"/session-1/v1/{path}", asked(path, 3))
        assert (said.status_code, len(h.recorder())) == (400, 0)


async def test_each_sample_of_a_streamed_call_has_its_own(folder: Path) -> None:
    async with torch_house(folder) as h:
        await h.session(seed=8)
        said = await h.post("/session-1/v1/chat/completions", asked("chat/completions", 3, n=3, stream=True))
        events = [json.loads(line[6:]) for line in said.text.splitlines() if line.startswith("data: {")]
        ends = [choice for event in events for choice in event["choices"] if choice.get("logprobs")]
        assert sorted(choice["index"] for choice in ends) == [0, 1, 2]
        sampled = {tuple(one["logprob"] for one in choice["logprobs"]["content"]) for choice in ends}
        assert sampled == {generation.logprobs for _, generation in h.engine.log}
        assert all(len(one["top_logprobs"]) == 3 for choice in ends for one in choice["logprobs"]["content"])


async def lose(h: House, monkeypatch: pytest.MonkeyPatch, path: str, body: Any) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr("loopwright.gateway.exchange.Exchange.delivered", lambda self, session, answers: None)
        return (await h.post(f"/session-1/v1/{path}", body)).json()


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_that_was_lost_is_given_again_with_them_also_by_a_restarted_gateway(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sessions.sqlite"
    async with SqliteStore(file) as store, house(["Hello."], store=store) as h:
        await h.session()
        lost = await lose(h, monkeypatch, path, asked(path, 3))
    async with SqliteStore(file) as store, house(["Another."], store=store) as h:
        other = (await h.post(f"/session-1/v1/{path}", asked(path, 2))).json()
        again = (await h.post(f"/session-1/v1/{path}", asked(path, 3))).json()
        assert told(path, again) == told(path, lost)
        assert told(path, other) != told(path, lost)
        assert all(likeliest for _, _, likeliest in told(path, again))
