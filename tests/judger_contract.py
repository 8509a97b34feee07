"""What the judger port promises, wherever the judger is. Each placement runs this suite: subclass `JudgerContract`, and
give it `place`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import pytest

from loopwright.config import (
    ComposedJudgerConfig,
    HttpJudgerConfig,
    JudgerConfig,
    MathAnswerConfig,
    NativeJudgerConfig,
)
from loopwright.config.judgers import JudgePer, PartConfig
from loopwright.errors import ConfigError, JudgeError
from loopwright.ports import Judger
from loopwright.testing import JudgeReply, JudgeServer, score_one
from loopwright.types import Episode, Scored, Task

USER_JUDGERS = Path(__file__).parent / "judgers"
TASK = Task.ask("t", "say something", truth=7, data_source="words")

Configs = dict[str, JudgerConfig]


class Place(Protocol):
    """Opens the judger called `name`. `secrets` are the variables of the environment that the config names."""

    def __call__(
        self, name: str, configs: Configs, secrets: Mapping[str, str] = ...
    ) -> AbstractAsyncContextManager[Judger]: ...


def said(answer: str) -> Episode:
    return Episode(({"role": "assistant", "content": answer},), ())


def native(function: str, **settings: Any) -> NativeJudgerConfig:
    return NativeJudgerConfig(path=f"user_judgers.py:{function}", **{"timeout_seconds": 60.0, **settings})


async def failure(judgement: Awaitable[Any]) -> JudgeError:
    with pytest.raises(JudgeError) as caught:
        await judgement
    return caught.value


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class JudgerContract:
    async def test_a_plain_function_runs_in_a_process_of_its_own(self, place: Place) -> None:
        async with place("where", {"where": native("where")}) as where:
            assert (where.name, where.judges_groups) == ("where", False)
            first, second = await where.score(TASK, [said("four"), said("three")])
        assert (first.value, second.value) == (4.0, 5.0)
        assert first.parts["pid"] != os.getpid()
        assert not first.parts["knows_torch"]

    async def test_an_async_function_scores_many_at_a_time(self, place: Place) -> None:
        async with place("length", {"length": native("length_async")}) as length:
            scores = await asyncio.gather(*(score_one(length, TASK, said("x" * i)) for i in range(30)))
        assert scores == [Scored(float(i)) for i in range(30)]

    async def test_a_group_is_judged_as_a_whole(self, place: Place) -> None:
        configs: Configs = {"best": native("ranks_with_parts", per=JudgePer.GROUP)}
        async with place("best", configs) as best:
            assert best.judges_groups
            scores = await best.score(TASK, [said("bb"), said("a")])
        assert list(scores) == [Scored(0.0, {"place": 0.0}, "bb"), Scored(1.0, {"place": 1.0}, "a")]
        async with place("bad", {"bad": native("ranks_with_one_number", per=JudgePer.GROUP)}) as bad:
            error = await failure(bad.score(TASK, [said("bb"), said("a")]))
        assert "returned 1.0 of type float for 2 episodes" in error.message

    async def test_a_composed_judger_keeps_the_names_of_its_parts_also_of_a_single_one(self, place: Place) -> None:
        configs: Configs = {
            "length": native("length_async"),
            "one": ComposedJudgerConfig(parts={"size": PartConfig(judger="length", weight=0.5)}),
            "two": ComposedJudgerConfig(
                parts={"one": PartConfig(judger="one"), "size": PartConfig(judger="length")},
                merge="user_judgers.py:product",
            ),
            "by_source": ComposedJudgerConfig(by_source={"words": "one"}),
        }
        async with place("two", configs) as two:
            scored = await score_one(two, TASK, said("four"))
        assert scored == Scored(8.0, {"one": 2.0, "one/size": 4.0, "size": 4.0, "both": 2.0})
        async with place("by_source", configs) as by_source:
            assert await score_one(by_source, TASK, said("four")) == Scored(2.0, {"one": 2.0, "one/size": 4.0})
            error = await failure(score_one(by_source, Task.ask("u", "?", data_source="sums"), said("four")))
        assert error.facts == {"judger": "by_source", "error": "UnknownSource"}

    async def test_a_part_that_fails_is_named(self, place: Place) -> None:
        configs: Configs = {
            "bad": native("raises_async"),
            "total": ComposedJudgerConfig(parts={"tone": PartConfig(judger="bad")}),
        }
        async with place("total", configs) as total:
            error = await failure(score_one(total, TASK, said("four")))
        assert error.message.startswith(
            "judger 'total', part 'tone': judger 'bad' (user_judgers.py:raises_async) raised"
        )
        assert (error.facts["judger"], error.facts["part"], error.facts["error"]) == ("total", "tone", "TimeoutError")

    async def test_mathematics(self, place: Place) -> None:
        async with place("sums", {"sums": MathAnswerConfig(timeout_seconds=60.0)}) as sums:
            evidence = "the answer was read as 7; the truth is 7"
            assert await score_one(sums, TASK, said(r"\boxed{14/2}")) == Scored(1.0, {}, "7", evidence)
            error = await failure(score_one(sums, Task.ask("t", "?", truth="seven"), said("7")))
        assert "gives no score: the truth of task 't' is 'seven'" in error.message

    async def test_a_service_gets_the_episode_and_the_key(self, place: Place) -> None:
        replies = [JudgeReply({"score": 1, "parts": {"style": 0.25}, "answer": "7"}), JudgeReply("no", 404)]
        with JudgeServer(replies) as server:
            config = HttpJudgerConfig(url=f"{server.url}/judge", api_key_env="TONE_KEY")
            async with place("tone", {"tone": config}, {"TONE_KEY": "s3cret"}) as tone:
                assert await score_one(tone, TASK, said("7")) == Scored(1.0, {"style": 0.25}, "7")
                error = await failure(score_one(tone, TASK, said("7")))
        request = server.requests[0]
        assert request.headers["authorization"] == "Bearer s3cret"
        assert (request.body["answer"], request.body["truth"]) == ("7", 7)
        assert (error.facts["error"], error.facts["status"]) == ("Status404", 404)

    async def test_a_judger_sees_no_secrets_but_those_that_it_names(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DATABASE_URL", "postgres://u:p@h")
        secrets = {"SEARCH_TOKEN": "2", "JUDGE_KEY": "of another judger"}
        async with place(
            "environment", {"environment": native("environment", env=("SEARCH_TOKEN",))}, secrets
        ) as judger:
            seen = json.loads((await score_one(judger, TASK, said(""))).answer or "")
        assert seen["SEARCH_TOKEN"] == "2"
        assert "PATH" in seen
        assert not {"DATABASE_URL", "JUDGE_KEY", "RAY_AUTH_TOKEN"} & set(seen)

    async def test_a_plain_function_past_its_deadline_is_killed_and_the_judger_goes_on(
        self, place: Place, tmp_path: Path
    ) -> None:
        told = tmp_path / "pid"
        async with place("tells", {"tells": native("tells", timeout_seconds=1.0)}) as tells:
            error = await failure(score_one(tells, TASK, said(str(told))))
            await until(lambda: not is_alive(int(told.read_text())))
            assert (await failure(score_one(tells, TASK, said(str(told))))).facts["error"] == "Timeout"
        assert error.message == "judger 'tells' (user_judgers.py:tells) gave no score within 1 s, and was stopped"
        assert error.remedy == "make it faster, or raise its `timeout_seconds`"

    async def test_an_async_function_has_a_deadline_too(self, place: Place) -> None:
        async with place("hangs", {"hangs": native("hangs_async", timeout_seconds=0.05)}) as hangs:
            assert (await failure(score_one(hangs, TASK, said("")))).facts["error"] == "Timeout"

    async def test_what_the_function_raises_or_returns_is_told_with_its_line(self, place: Place) -> None:
        async with place("wrong", {"wrong": native("wrong")}) as wrong:
            errors = {
                name: await failure(score_one(wrong, TASK, said(name)))
                for name in ("string", "nan", "raises", "leaves", "gives_up", "speechless", "unreadable", "cancels")
            }
        assert "judger 'wrong' (user_judgers.py:wrong) returned '0.5' of type str" in errors["string"].message
        assert errors["nan"].facts["error"] == "WrongReturn"
        assert "raised KeyError: 'score' (user_judgers.py:" in errors["raises"].message
        assert "json.loads(episode.answer)" in errors["raises"].facts["trace"]
        assert "raised SystemExit: enough" in errors["leaves"].message
        assert (errors["gives_up"].remedy, errors["gives_up"].facts["error"]) == ("start it", "NoSandbox")
        assert "raised SpeechlessError" in errors["speechless"].message
        assert "raised ValueError: no number" in errors["unreadable"].message
        assert "raised CancelledError" in errors["cancels"].message

    async def test_an_exception_that_no_other_process_can_read_is_told_all_the_same(self, place: Place) -> None:
        async with place("odd", {"odd": native("raises_oddly")}) as odd:
            error = await failure(score_one(odd, TASK, said("")))
        assert "judger 'odd' (user_judgers.py:raises_oddly) raised OddError: code 7 (user_judgers.py:" in error.message
        assert error.facts["error"] == "OddError"

    async def test_a_worker_process_that_dies_is_a_failure_and_the_judger_goes_on(self, place: Place) -> None:
        async with place("dies", {"dies": native("dies")}) as dies:
            error = await failure(score_one(dies, TASK, said("die")))
            assert await score_one(dies, TASK, said("quick")) == Scored(1.0)
        assert error.facts["error"] == "WorkerDied"

    async def test_cancelling_ends_a_plain_function_and_frees_its_worker(self, place: Place, tmp_path: Path) -> None:
        told = tmp_path / "pid"
        async with place("tells", {"tells": native("tells", timeout_seconds=50.0)}) as tells:
            call = asyncio.create_task(score_one(tells, TASK, said(str(told))))
            await until(told.exists)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: not is_alive(int(told.read_text())))

    async def test_cancelling_cancels_an_async_function(self, place: Place, tmp_path: Path) -> None:
        told = tmp_path / "told"
        async with place("tells", {"tells": native("tells_async")}) as tells:
            call = asyncio.create_task(score_one(tells, TASK, said(str(told))))
            await until(told.exists)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: told.read_text() == "cancelled")

    async def test_leaving_ends_every_worker(self, place: Place) -> None:
        async with place("pid", {"pid": native("pid")}) as pid:
            worker = int((await score_one(pid, TASK, said(""))).value)
            assert is_alive(worker)
        await until(lambda: not is_alive(worker))

    async def test_a_function_that_is_not_there_is_refused_when_the_judger_is_opened(self, place: Place) -> None:
        with pytest.raises(ConfigError, match="which cannot be called") as caught:
            async with place("bad", {"bad": native("NOT_A_FUNCTION")}):
                raise AssertionError("it is not open")
        assert caught.value.remedy == "name a function: `file.py:name`"
