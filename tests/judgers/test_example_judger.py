"""examples/custom_judger.py does what it says, through the judger that the config would build."""

from __future__ import annotations

from pathlib import Path

from loopwright.judgers import NativeJudger
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
