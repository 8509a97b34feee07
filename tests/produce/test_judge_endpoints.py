"""A judge endpoint that is down, slow or talks nonsense: the judge alone is asked again, nothing becomes 0 (R2, R4).

The engine counts its requests, which proves that no agent ran twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from house import House, task_set

from loopwright.config import HttpJudgerConfig
from loopwright.errors import BudgetError
from loopwright.judgers import endpoint, open_judgers
from loopwright.produce import rollouts
from loopwright.testing import JudgeReply, JudgeRequest, JudgeServer
from loopwright.types import Failed, FailureCause, GroupStatus, Unscored

FINE = JudgeReply({"score": 1.0})


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FIRST_PAUSE_SECONDS", 0.01)


@asynccontextmanager
async def judged_at(url: str, house: House | None = None, **settings: Any) -> AsyncIterator[House]:
    """A house of one group of two, whose judge is at `url`; it goes on with the storage of another one."""
    config = HttpJudgerConfig(url=url, **{"retries": 0, "timeout_seconds": 1.0, **settings})
    async with open_judgers(["tone"], {"tone": config}, Path(), {}) as judgers:
        task_sets = [task_set(judger=judgers["tone"])]
        given = {"storage": house.storage} if house else {}
        yield House(task_sets=task_sets, groups=1, members=2, budget=2, **given)  # type: ignore[arg-type]


BAD: list[tuple[JudgeReply, str]] = [
    (JudgeReply("oh no", 500), "Status500"),
    (JudgeReply("slow down", 429, {"retry-after": "3600"}), "Status429"),
    (JudgeReply("no", 404), "Status404"),
    (JudgeReply(b"<html>"), "NoJson"),
    (JudgeReply(b'{"score": NaN}'), "WrongAnswer"),
    (JudgeReply({"score": 1.0}, seconds=30), "Timeout"),
]


@pytest.mark.parametrize(("reply", "error"), BAD)
async def test_members_fail_with_the_cause_and_the_run_ends_with_the_judgers_name(
    reply: JudgeReply, error: str
) -> None:
    with JudgeServer([reply]) as server:
        async with judged_at(server.url) as house:
            with pytest.raises(BudgetError, match=rf"judger 'tone'.*judge {error}"):
                await house.producer().produce_batch(1, 0)
            rewards = [rollout.reward for rollout in house.seen]
            assert {(r.cause, r.error) for r in rewards if isinstance(r, Failed)} == {(FailureCause.JUDGE, error)}
            assert len(rewards) == len(house.engine.requests) == 4, "two groups of two, each sampled once"
            assert await house.counts() == {GroupStatus.FAILED: 2}


@pytest.mark.parametrize(("reply", "error"), BAD)
async def test_the_judge_alone_is_asked_again(reply: JudgeReply, error: str) -> None:
    """The first two answers are bad, whichever of the two members asked."""
    asked: dict[str, int] = {}

    def first_bad(request: JudgeRequest) -> JudgeReply:
        task = request.body["task"]
        asked[task] = asked.get(task, 0) + 1
        return reply if asked[task] <= 2 else FINE

    with JudgeServer(first_bad) as server:
        async with judged_at(server.url, concurrency=1) as house:
            house.judge_attempts = 3
            batch = await house.producer().produce_batch(1, 0)
    assert [group.rewards for group in batch.groups] == [(1.0, 1.0)]
    assert len(house.engine.requests) == 2, "no agent ran again"
    assert len(server.requests) == 4
    assert batch.metrics["failures/judge"] == 0.0


async def test_when_it_is_back_the_stored_episodes_are_judged_and_none_is_sampled_again() -> None:
    with JudgeServer([FINE]) as server:
        pass
    async with judged_at(server.url) as away:
        with pytest.raises(BudgetError, match="ConnectError"):
            await away.producer().produce_batch(1, 0)
    with JudgeServer([FINE], port=server.port) as back:
        async with judged_at(back.url, away) as house:
            producer = await house.resumed()
            batches = [await producer.produce_batch(1, 0), await producer.produce_batch(2, 1)]
    assert house.engine.requests == []
    assert [(group.draw, group.rewards) for batch in batches for group in batch.groups] == [
        (0, (1.0, 1.0)),
        (1, (1.0, 1.0)),
    ]
    assert len(back.requests) == 4
    assert await house.counts() == {GroupStatus.COMPLETED: 2}


async def test_an_episode_is_stored_while_its_judge_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "PATIENCE_SECONDS", 0.05)
    with JudgeServer([JudgeReply({"score": 1.0}, seconds=30)]) as server:
        async with judged_at(server.url, timeout_seconds=60) as house:
            producing = asyncio.create_task(house.producer().produce_batch(1, 0))
            await _until(lambda: len(server.requests) == 2)
            async with asyncio.timeout(10):
                while len(await house.storage.rollouts_of("math", 0)) < 2:
                    await asyncio.sleep(0.01)
            assert {rollout.reward for rollout in await house.storage.rollouts_of("math", 0)} == {Unscored()}
            assert house.seen == [], "nobody is told of a rollout without a reward"
            producing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await producing
    with JudgeServer([FINE]) as back:
        async with judged_at(back.url, house) as again:
            batch = await (await again.resumed()).produce_batch(1, 0)
    assert batch.groups[0].rewards == (1.0, 1.0)
    assert again.engine.requests == []
    assert [rollout.key.attempt for rollout in batch.groups[0].rollouts] == [0, 0]


async def test_an_episode_whose_judge_is_at_work_outlives_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "PATIENCE_SECONDS", 600.0)
    with JudgeServer([JudgeReply({"score": 1.0}, seconds=30)]) as server:
        async with judged_at(server.url, timeout_seconds=60) as house:
            producing = asyncio.create_task(house.producer().produce_batch(1, 0))
            await _until(lambda: len(server.requests) == 2)
            assert await house.storage.rollouts_of("math", 0) == (), "a quick judge needs no second write"
            producing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await producing
    assert [rollout.reward for rollout in await house.storage.rollouts_of("math", 0)] == [Unscored(), Unscored()]


async def test_a_judge_that_takes_its_time_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "PATIENCE_SECONDS", 0.01)
    with JudgeServer([JudgeReply({"score": 0.5}, seconds=0.15)]) as server:
        async with judged_at(server.url, timeout_seconds=60) as house:
            batch = await house.producer().produce_batch(1, 0)
    assert batch.groups[0].rewards == (0.5, 0.5)
    assert [rollout.score for rollout in await house.storage.rollouts_of("math", 0)] == [0.5, 0.5]
    assert [rollout.score for rollout in house.seen] == [0.5, 0.5]


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)
