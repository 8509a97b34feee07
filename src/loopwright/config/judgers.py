"""The schema of judgers: who scores an episode. Each is named once, under `judgers`, and shared by name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from loopwright.config.base import Count, Positive, Section, Text

BUILT_IN_JUDGERS = ("integer_answer",)
"""Judgers that an agent may name without declaring them."""


class NativeJudgerConfig(Section):
    """The user's function `judge(task, episode)`."""

    kind: Literal["native"] = "native"
    path: Text
    timeout_seconds: Positive = 10.0
    workers: Count = 1


class IntegerAnswerConfig(Section):
    """Built in: 1 if the last integer of the answer is the task's truth."""

    kind: Literal["integer_answer"] = "integer_answer"


JudgerConfig = Annotated[NativeJudgerConfig | IntegerAnswerConfig, Field(discriminator="kind")]
