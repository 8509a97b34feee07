"""An engine that is lost under a call: the client sees one slower answer, or a 503 that tells it when to try again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_house import House, RecordingEngine, house, odd_ids

from loopwright.errors import EngineLostError
from loopwright.ports import OnPart
from loopwright.types import ChainStart, FinishReason, GenerateRequest, Generation

HI = [{"role": "user", "content": "Hi"}]
SAID = "Hello there, it took a while."
PATHS = {"chat": "v1/chat/completions", "responses": "v1/responses", "messages": "v1/messages"}


class LostEngine(RecordingEngine):
    """Dies after `tokens` of its first answer, refuses `away` calls, and has new weights when it is back."""

    def __init__(self, tokens: int, away: int) -> None:
        super().__init__([SAID], encode=odd_ids)
        self._tokens: int | None = tokens
        self._away = away

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        if self._tokens is not None:
            tokens, self._tokens = odd_ids(SAID)[: self._tokens], None
            for token in tokens:
                if on_part is not None:
                    on_part(Generation((token,), (-0.5,), (0,), FinishReason.ABORT))
                await asyncio.sleep(0)
            raise EngineLostError("the engine died", remedy="start it again")
        if self._away:
            self._away -= 1
            raise EngineLostError("nobody is there", remedy="start it")
        await self.load(1)
        return await super().generate(request, on_part)


def body(path: str, *, stream: bool) -> dict[str, Any]:
    return {"model": "m", "messages": HI, "input": "Hi", "max_tokens": 500, "stream": stream}


async def said_by(h: House, api: str, *, stream: bool) -> str:
    """What a client of the SDK has heard."""
    asked: dict[str, Any] = {"model": "m", "stream": stream}
    match api:
        case "messages":
            async with h.anthropic("session-1", max_retries=0) as client:
                if not stream:
                    message = await client.messages.create(model="m", messages=HI, max_tokens=500)
                    return str(message.content[0].text)
                async with client.messages.stream(model="m", messages=HI, max_tokens=500) as events:
                    return str(await events.get_final_text())
        case "responses":
            async with h.openai("session-1", max_retries=0) as openai:
                answer: Any = await openai.responses.create(input="Hi", **asked)
                events = [event async for event in answer] if stream else []
                return str((events[-1].response if stream else answer).output_text)
        case _:
            async with h.openai("session-1", max_retries=0) as openai:
                answer = await openai.chat.completions.create(messages=HI, **asked)
                chunks = [chunk async for chunk in answer] if stream else []
                heard = [chunk.choices[0].delta.content or "" for chunk in chunks]
                return "".join(heard) if stream else str(answer.choices[0].message.content)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", PATHS)
async def test_a_lost_engine_makes_an_answer_slower(api: str, stream: bool) -> None:
    async with house([], engine=LostEngine(5, away=1), wait_seconds=10) as h:
        await h.session(max_tokens=100)
        assert await said_by(h, api, stream=stream) == SAID
        (turn,) = h.recorder().turns
        assert turn.ids.tolist() == list(odd_ids(SAID))
        assert turn.versions.tolist() == ([0] * 5 if stream else []) + [1] * (len(turn.ids) - 5 * stream)
        assert turn.start is ChainStart.FIRST
        # What came before the death counts: the engine that goes on is asked for the rest of the budget.
        assert h.engine.requests[-1].sampling.max_new_tokens == 100 - 5 * stream


@pytest.mark.parametrize("api", PATHS)
async def test_beyond_its_time_a_call_is_a_503_in_its_own_dialect(api: str) -> None:
    for stream in (True, False):
        async with house([], engine=LostEngine(0, away=1000), wait_seconds=0.2) as h:
            await h.session()
            answer = await h.post(f"/session-1/{PATHS[api]}", body(PATHS[api], stream=stream))
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            kind = "overloaded_error" if api == "messages" else "server_error"
            assert answer.json()["error"]["type"] == kind
            assert len(h.recorder()) == 0


async def test_a_stream_that_waits_for_its_first_token_has_no_status_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the failure could only be told in the stream, where SDKs do not try again."""
    monkeypatch.setattr("loopwright.gateway.events.BEAT_SECONDS", 0.05)
    async with house([], engine=LostEngine(0, away=1000), wait_seconds=0.5) as h:
        await h.session()
        answer = await h.post("/session-1/v1/messages", body("v1/messages", stream=True))
        assert answer.status_code == 503


async def test_a_stream_that_lost_its_engine_for_good_ends_with_an_error() -> None:
    async with house([], engine=LostEngine(5, away=1000), wait_seconds=0.2) as h:
        await h.session()
        answer = await h.post("/session-1/v1/messages", body("v1/messages", stream=True))
        assert answer.status_code == 200
        assert "overloaded_error" in answer.text
        assert len(h.recorder()) == 0
