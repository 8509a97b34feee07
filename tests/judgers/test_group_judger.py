"""The user's function that judges a whole group: one score for each member, or a JudgeError for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.errors import JudgeError
from loopwright.judgers import NativeGroupJudger
from loopwright.types import Episode, Scored, Task

HERE = Path(__file__).parent
TASK = Task.ask("t", "say something")
EPISODES = [Episode(({"role": "assistant", "content": text},), ()) for text in ("bb", "a")]


def judger(function: str, timeout_seconds: float = 60.0) -> NativeGroupJudger:
    return NativeGroupJudger(function, f"user_judgers.py:{function}", HERE, timeout_seconds)


async def test_each_episode_gets_its_score_in_order() -> None:
    async with judger("ranks") as ranks, judger("ranks_with_parts") as with_parts:
        assert await ranks.score(TASK, EPISODES) == (Scored(1.0), Scored(0.0))
        assert await with_parts.score(TASK, EPISODES) == (
            Scored(0.0, {"place": 0.0}, "bb"),
            Scored(1.0, {"place": 1.0}, "a"),
        )


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("ranks_too_few", r"returned \[1.0\] of type list for 2 episodes"),
        ("ranks_with_one_number", "returned 1.0 of type float for 2 episodes"),
        ("ranks_as_text", "returned '12' of type str for 2 episodes"),
        ("ranks_with_nan", "returned nan of type float"),
    ],
)
async def test_a_wrong_number_of_scores_is_an_error(function: str, words: str) -> None:
    async with judger(function) as bad:
        with pytest.raises(JudgeError, match=words) as caught:
            await bad.score(TASK, EPISODES)
    assert caught.value.facts["error"] == "WrongReturn"


async def test_it_has_a_deadline() -> None:
    async with judger("ranks_slowly", 0.1) as slow:
        with pytest.raises(JudgeError, match=r"no score within 0\.1 s"):
            await slow.score(TASK, EPISODES)
