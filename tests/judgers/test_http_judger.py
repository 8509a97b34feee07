"""A judge behind HTTP: a score or a JudgeError that says what came, and retries only where they can help (R2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from loopwright.config import HttpJudgerConfig
from loopwright.errors import ConfigError, JudgeError
from loopwright.judgers import endpoint, open_judgers
from loopwright.ports import Judger
from loopwright.testing import JudgeReply, JudgeServer, score_one
from loopwright.types import Episode, Scored, Task

TASK = Task.ask("t1", "What is 3+4?", truth=7, data_source="sums")
EPISODE = Episode((*TASK.messages, {"role": "assistant", "content": "\ud83d is 7"}), ())
FINE = JudgeReply({"score": 0.5})


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FIRST_PAUSE_SECONDS", 0.01)


@asynccontextmanager
async def judger(url: str, secrets: dict[str, str] | None = None, **settings: Any) -> AsyncIterator[Judger]:
    config = HttpJudgerConfig(url=url, **settings)
    async with open_judgers(["tone"], {"tone": config}, Path(), secrets or {}) as opened:
        yield opened["tone"]


async def judged(replies: Sequence[JudgeReply], **settings: Any) -> tuple[Scored | JudgeError, int]:
    """What the judger made of the replies, and how many requests it took."""
    with JudgeServer(replies) as server:
        async with judger(f"{server.url}/judge", **settings) as tone:
            try:
                return await score_one(tone, TASK, EPISODE), len(server.requests)
            except JudgeError as error:
                failed = error
    assert failed.facts["judger"] == "tone"
    assert f"judger 'tone' ({server.url}/judge)" in failed.message
    return failed, len(server.requests)


async def test_the_episode_goes_out_and_the_score_comes_back() -> None:
    reply = JudgeReply({"score": 1, "parts": {"style": 0.25}, "answer": "7", "evidence": "short"})
    with JudgeServer([reply]) as server:
        async with judger(f"{server.url}/judge", {"TONE_KEY": "s3cret"}, api_key_env="TONE_KEY") as tone:
            assert await score_one(tone, TASK, EPISODE) == Scored(1.0, {"style": 0.25}, "7", "short")
    (request,) = server.requests
    assert request.path == "/judge"
    assert request.headers["authorization"] == "Bearer s3cret"
    assert request.body == {
        "task": "t1",
        "messages": [dict(message) for message in EPISODE.messages],
        "answer": "\ud83d is 7",
        "truth": 7,
        "metadata": {"data_source": "sums"},
    }


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_what_may_pass_is_tried_again(status: int) -> None:
    assert await judged([JudgeReply("busy", status), JudgeReply("busy", status), FINE]) == (Scored(0.5), 3)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 301])
async def test_what_will_not_pass_is_not(status: int) -> None:
    error, requests = await judged([JudgeReply({"detail": "no such judge"}, status), FINE])
    assert isinstance(error, JudgeError)
    assert requests == 1
    assert f"status {status}" in error.message
    assert "no such judge" in error.message
    assert (error.facts["error"], error.facts["status"]) == (f"Status{status}", status)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html>Bad gateway</html>", "NoJson"),
        (b"", "NoJson"),
        (b"[" * 100_000, "NoJson"),
        (b"\xff\xfe\x00", "NoJson"),
        (b"9" * 5000, "NoJson"),
        (b"x" * (1 << 20) + b"x", "TooLong"),
        (b'{"score": NaN}', "WrongAnswer"),
        (b'{"score": 1e999}', "WrongAnswer"),
        (b'{"score": 1' + b"0" * 400 + b"}", "WrongAnswer"),
        ({"score": "1"}, "WrongAnswer"),
        ({"score": True}, "WrongAnswer"),
        ({"score": None}, "WrongAnswer"),
        ({"points": 1}, "WrongAnswer"),
        ([1.0], "WrongAnswer"),
        (1.0, "WrongAnswer"),
        ({"score": 1, "parts": {"style": "good"}}, "WrongAnswer"),
        ({"score": 1, "parts": [1]}, "WrongAnswer"),
        ({"score": 1, "answer": 7}, "WrongAnswer"),
    ],
)
async def test_garbage_is_an_error_that_shows_it_and_is_not_asked_for_again(body: Any, kind: str) -> None:
    error, requests = await judged([JudgeReply(body), FINE])
    assert isinstance(error, JudgeError)
    assert (error.facts["error"], requests) == (kind, 1)
    assert len(error.message) < 400
    if isinstance(body, bytes) and body.startswith(b"<html>"):
        assert "<html>Bad gateway" in error.message


async def test_a_judge_that_is_down_is_named_with_its_address() -> None:
    with JudgeServer([FINE]) as server:
        pass
    async with judger(f"{server.url}/judge", retries=1) as tone:
        with pytest.raises(JudgeError, match=rf"127\.0\.0\.1:{server.port}/judge.*ConnectError") as caught:
            await score_one(tone, TASK, EPISODE)
    assert caught.value.facts["error"] == "ConnectError"


async def test_an_address_that_is_none_is_an_error_at_once() -> None:
    async with judger("http://host:port/judge") as tone:
        with pytest.raises(JudgeError, match=r"judger 'tone' .* cannot be asked: Invalid port") as caught:
            await score_one(tone, TASK, EPISODE)
    assert caught.value.facts["error"] == "InvalidURL"


async def test_a_slow_judge_is_asked_again_and_then_given_up() -> None:
    slow = JudgeReply({"score": 1}, seconds=30)
    assert await judged([slow, FINE], timeout_seconds=0.2) == (Scored(0.5), 2)
    error, requests = await judged([slow], timeout_seconds=0.1, retries=1)
    assert isinstance(error, JudgeError)
    assert (error.facts["error"], requests) == ("Timeout", 2)
    assert "raise its `timeout_seconds`" in error.remedy


async def test_a_pause_that_the_server_asks_for_is_kept() -> None:
    started = time.monotonic()
    assert await judged([JudgeReply("", 429, {"retry-after": "0.3"}), FINE]) == (Scored(0.5), 2)
    assert time.monotonic() - started >= 0.3


@pytest.mark.parametrize("after", ["3600", "inf", formatdate(4e9)], ids=["seconds", "inf", "date"])
async def test_a_pause_beyond_the_deadline_is_not_waited_for(after: str) -> None:
    started = time.monotonic()
    error, requests = await judged([JudgeReply("slow down", 429, {"retry-after": after}), FINE], deadline_seconds=5)
    assert isinstance(error, JudgeError)
    assert (error.facts["error"], requests) == ("Status429", 1)
    assert time.monotonic() - started < 4


@pytest.mark.parametrize("after", ["soon", "-5", "nan", formatdate(0)])
async def test_an_odd_pause_is_no_pause(after: str) -> None:
    assert await judged([JudgeReply("", 503, {"retry-after": after}), FINE]) == (Scored(0.5), 2)


async def test_the_deadline_bounds_all_tries_together() -> None:
    started = time.monotonic()
    error, requests = await judged([JudgeReply("", 500)], deadline_seconds=0.3, retries=1000)
    assert isinstance(error, JudgeError)
    assert 2 <= requests < 20
    assert time.monotonic() - started < 2


async def test_no_more_requests_are_open_than_the_judger_may_have() -> None:
    with JudgeServer([JudgeReply({"score": 1}, seconds=0.1)]) as server:
        async with judger(server.url, concurrency=2) as tone:
            asked = [asyncio.create_task(score_one(tone, TASK, EPISODE)) for _ in range(6)]
            await asyncio.sleep(0.05)
            assert len(server.requests) == 2
            assert await asyncio.gather(*asked) == [Scored(1.0)] * 6


async def test_a_cancelled_call_leaves_nothing_behind() -> None:
    with JudgeServer([JudgeReply({"score": 1}, seconds=30), FINE]) as server:
        async with judger(server.url, concurrency=1) as tone:
            call = asyncio.create_task(score_one(tone, TASK, EPISODE))
            while not server.requests:
                await asyncio.sleep(0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await score_one(tone, TASK, EPISODE) == Scored(0.5), "its place is free again"


async def test_a_key_that_is_not_set_is_missed_before_the_first_call() -> None:
    with pytest.raises(ConfigError, match="TONE_KEY"):
        async with judger("http://127.0.0.1:1", api_key_env="TONE_KEY"):
            pass


async def test_without_httpx_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        async with judger("http://127.0.0.1:1"):
            pass
    assert "loopwright[http]" in caught.value.remedy
