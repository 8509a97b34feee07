"""Judgers made of judgers: every part's score kept by name, and no score without all of them (R2)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.config import ComposedJudgerConfig, JudgerConfig, NativeJudgerConfig
from loopwright.config.judgers import PartConfig
from loopwright.errors import ChainError, JudgeError
from loopwright.judgers import MemberJudger, open_judgers
from loopwright.judgers.composed import JudgerBySource, Part, SeveralJudgers, weighted_sum
from loopwright.testing import score_one
from loopwright.types import Episode, Scored, Task

HERE = Path(__file__).parent
TASK = Task.ask("t", "say four", data_source="words")
EPISODE = Episode(({"role": "assistant", "content": "four"},), ())


@dataclass
class Fixed(MemberJudger):
    """Gives what a test wants, or raises it; with a `meeting`, only when all of its parties are there."""

    scored: Scored | Exception
    name: str = "fixed"
    meeting: asyncio.Barrier | None = None
    calls: int = field(default=0)
    cancelled: bool = False

    async def judge(self, task: Task, episode: Episode) -> Scored:
        self.calls += 1
        try:
            if self.meeting is not None:
                await self.meeting.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if isinstance(self.scored, Exception):
            raise self.scored
        return self.scored


def several(weights: Mapping[str, float], **judgers: Fixed) -> SeveralJudgers:
    return SeveralJudgers(
        "total", [Part(name, judger) for name, judger in judgers.items()], weighted_sum("total", weights)
    )


numbers = st.floats(-100, 100)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=5))
async def test_the_score_is_the_weighted_sum_and_each_part_is_kept(parts: list[tuple[float, float]]) -> None:
    judgers = {f"p{i}": Fixed(Scored(value)) for i, (_, value) in enumerate(parts)}
    total = several({f"p{i}": weight for i, (weight, _) in enumerate(parts)}, **judgers)
    scored = await total.judge(TASK, EPISODE)
    assert math.isclose(scored.value, sum(w * v for w, v in parts), abs_tol=1e-9)
    assert scored.parts == {f"p{i}": value for i, (_, value) in enumerate(parts)}


async def test_nested_names_are_joined_and_the_first_answer_is_kept() -> None:
    inner = several(
        {"a": 1.0, "b": 2.0}, a=Fixed(Scored(1.0, {"x": 0.5}, evidence="why")), b=Fixed(Scored(2.0, answer="B"))
    )
    outer = SeveralJudgers(
        "outer",
        [Part("style", Fixed(Scored(0.0))), Part("right", inner)],
        weighted_sum("outer", {"style": 1, "right": 1}),
    )
    assert await outer.judge(TASK, EPISODE) == Scored(
        5.0, {"style": 0.0, "right": 5.0, "right/a": 1.0, "right/a/x": 0.5, "right/b": 2.0}, "B", "right: a: why"
    )


async def test_a_sum_that_is_no_number_is_a_failure_of_the_judger_by_name() -> None:
    total = several({"a": 10.0, "b": 1.0}, a=Fixed(Scored(1e308)), b=Fixed(Scored(0.5)))
    with pytest.raises(JudgeError, match=r"judger 'total'.*the sum is inf, of the parts a 1e.308, b 0.5") as caught:
        await total.judge(TASK, EPISODE)
    assert (caught.value.facts["judger"], caught.value.facts["error"]) == ("total", "Overflow")


async def test_a_merged_part_does_not_replace_a_judgers_score() -> None:
    async def merge(scores: Mapping[str, Scored]) -> Scored:
        return Scored(1.0, {"a": 0.25, "own": 0.5})

    total = SeveralJudgers("total", [Part("a", Fixed(Scored(2.0)))], merge)
    assert (await total.judge(TASK, EPISODE)).parts == {"a": 2.0, "own": 0.5}


async def test_the_parts_are_judged_at_the_same_time() -> None:
    meeting = asyncio.Barrier(3)
    judgers = {name: Fixed(Scored(1.0), meeting=meeting) for name in "abc"}
    async with asyncio.timeout(10):
        assert (await several(dict.fromkeys("abc", 1.0), **judgers).judge(TASK, EPISODE)).value == 3.0


async def test_one_failed_part_fails_the_whole_by_name() -> None:
    broken = Fixed(JudgeError("judger 'x' is down", remedy="wake it", error="ConnectError", judger="x"))
    with pytest.raises(JudgeError, match="judger 'total', part 'tone': judger 'x' is down") as caught:
        await several({"right": 1.0, "tone": 1.0}, right=Fixed(Scored(1.0)), tone=broken).judge(TASK, EPISODE)
    assert caught.value.facts == {"error": "ConnectError", "judger": "total", "part": "tone"}
    assert caught.value.remedy == "wake it"


async def test_a_failed_part_waits_for_the_others_and_the_first_by_order_is_named() -> None:
    meeting = asyncio.Barrier(3)
    slow = Fixed(Scored(1.0), meeting=meeting)
    late = Fixed(JudgeError("late", remedy=""), meeting=meeting)
    early = Fixed(JudgeError("early", remedy=""))
    total = several(dict.fromkeys(("slow", "late", "early"), 1.0), slow=slow, late=late, early=early)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        judgement = group.create_task(_failure(total))
        await asyncio.sleep(0.01)
        assert not judgement.done()
        await meeting.wait()
    assert "part 'late'" in judgement.result().message
    assert not slow.cancelled


async def _failure(total: SeveralJudgers) -> JudgeError:
    with pytest.raises(JudgeError) as caught:
        await total.judge(TASK, EPISODE)
    return caught.value


async def test_a_cancelled_judgement_leaves_no_part_running() -> None:
    waits = Fixed(Scored(1.0), meeting=asyncio.Barrier(2))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await several({"a": 1.0}, a=waits).judge(TASK, EPISODE)
    assert waits.cancelled


async def test_a_bug_of_ours_is_no_failure_of_a_part() -> None:
    with pytest.raises(ChainError):
        await several({"a": 1.0}, a=Fixed(ChainError("bug", remedy="mend it"))).judge(TASK, EPISODE)


async def test_the_source_of_a_task_chooses_its_judger() -> None:
    words, sums = Fixed(Scored(0.5, {"x": 1.0}, "four"), "length"), Fixed(Scored(1.0), "sums")
    by_source = JudgerBySource("any", {"words": words, "sums": sums}, "data_source", None)
    assert await by_source.judge(TASK, EPISODE) == Scored(0.5, {"length": 0.5, "length/x": 1.0}, "four")
    assert sums.calls == 0
    stranger = Task.ask("t9", "?", data_source="code")
    with pytest.raises(JudgeError, match="no judger for task 't9', whose data_source is 'code'; it has words, sums"):
        await by_source.judge(stranger, EPISODE)
    with pytest.raises(JudgeError, match="data_source is None"):
        await by_source.judge(Task.ask("t10", "?"), EPISODE)
    fallback = JudgerBySource("any", {"words": words}, "data_source", sums)
    assert (await fallback.judge(stranger, EPISODE)).value == 1.0
    broken = JudgerBySource("any", {"words": Fixed(JudgeError("down", remedy=""), "x")}, "data_source", None)
    with pytest.raises(JudgeError, match="judger 'any', part 'x': down"):
        await broken.judge(TASK, EPISODE)


def native(function: str) -> NativeJudgerConfig:
    return NativeJudgerConfig(path=f"user_judgers.py:{function}", timeout_seconds=60)


async def test_a_merge_function_makes_one_score_of_the_parts() -> None:
    parts = {"length": PartConfig(judger="length"), "again": PartConfig(judger="length")}
    configs: dict[str, JudgerConfig] = {
        "length": native("length_async"),
        "total": ComposedJudgerConfig(parts=parts, merge="user_judgers.py:product", timeout_seconds=60),
        "bad": ComposedJudgerConfig(parts=parts, merge="user_judgers.py:merges_badly", timeout_seconds=60),
    }
    async with open_judgers(["total", "bad"], configs, HERE, {}) as judgers:
        total, bad = judgers["total"], judgers["bad"]
        assert await score_one(total, TASK, EPISODE) == Scored(16.0, {"length": 4.0, "again": 4.0, "both": 2.0})
        with pytest.raises(JudgeError, match=r"judger 'bad' \(user_judgers.py:merges_badly\) raised KeyError"):
            await score_one(bad, TASK, EPISODE)


async def test_a_judger_that_several_name_is_one_object() -> None:
    parts = {"length": PartConfig(judger="length")}
    configs: dict[str, JudgerConfig] = {
        "length": native("pid"),
        "a": ComposedJudgerConfig(parts=parts),
        "b": ComposedJudgerConfig(by_source={"words": "length"}, default="a"),
    }
    async with open_judgers(["a", "b", "length", "a"], configs, HERE, {}) as judgers:
        assert list(judgers) == ["a", "b", "length"]
        pids = {(await score_one(judger, TASK, EPISODE)).value for judger in judgers.values()}
    assert len(pids) == 1, "one pool of workers"
