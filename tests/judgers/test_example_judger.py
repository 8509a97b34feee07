"""The example judgers do what they say, through the judgers that a config builds."""

from __future__ import annotations

from pathlib import Path

from loopwright.config import load
from loopwright.judgers import NativeGroupJudger, NativeJudger, open_judgers
from loopwright.testing import score_one
from loopwright.types import Episode, Scored, Task

EXAMPLES = Path(__file__).parents[2] / "examples"


async def test_the_closer_the_better() -> None:
    task = Task.ask("t", "What is 12+7?", truth=19)
    async with NativeJudger("close", "custom_judger.py:closeness", EXAMPLES) as judger:
        right, near, none = [
            await judger.judge(task, Episode(({"role": "assistant", "content": text},), ()))
            for text in ("It is 19", "18", "no idea")
        ]
    assert right == Scored(1.0, {"has_number": 1.0, "error": 0.0})
    assert near.value == 0.5
    assert none == Scored(0.0, {"has_number": 0.0})


async def test_the_shortest_right_answer_is_the_best() -> None:
    task = Task.ask("t", "What is 12+7?", truth=19)
    episodes = [
        Episode(({"role": "assistant", "content": text},), ())
        for text in ("It is 19", "18", "19", "The answer is clearly 19", "19 or 7")
    ]
    async with NativeGroupJudger("best", "group_judger.py:prefer_short", EXAMPLES) as judger:
        scores = await judger.score(task, episodes)
        alone = await judger.score(task, episodes[:2])
    assert [scored.value for scored in scores] == [0.75, 0.0, 1.0, 0.5, 0.0]
    assert [scored.value for scored in alone] == [0.5, 0.0]


async def test_the_composed_example_weighs_brevity_lightly() -> None:
    loaded = load(EXAMPLES / "composed.yaml", files=True)
    assert loaded.warnings == ()
    async with open_judgers(["total"], loaded.config.judgers, loaded.base, {}) as judgers:
        said = Episode(({"role": "assistant", "content": "19"},), ())
        scored = await score_one(judgers["total"], Task.ask("t", "What is 12+7?", truth=19), said)
    assert scored == Scored(1.098, {"right": 1.0, "short": 0.98}, "19")
