"""The schema of judgers: who scores an episode. Each is named once, under `judgers`, and shared by name."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from loopwright.config.base import Count, CountOrZero, FromYaml, Positive, Section, Text
from loopwright.config.problems import KeyPath

BUILT_IN_JUDGERS = ("integer_answer", "math_answer")
"""Judgers that an agent may name without declaring them."""


class JudgePer(StrEnum):
    """What a judger sees at a time."""

    MEMBER = "member"
    """One episode, as soon as it ends."""
    GROUP = "group"
    """All episodes of a task together, as a ranking needs them."""


class NativeJudgerConfig(Section):
    """The user's function: `judge(task, episode)`, or `judge_group(task, episodes)` with `per: group`."""

    kind: Literal["native"] = "native"
    path: Text
    per: FromYaml[JudgePer] = JudgePer.MEMBER
    timeout_seconds: Positive = 10.0
    workers: Count = 1


class IntegerAnswerConfig(Section):
    """Built in: 1 if the last integer of the answer is the task's truth."""

    kind: Literal["integer_answer"] = "integer_answer"


class MathAnswerConfig(Section):
    """Built in: 1 if the answer is mathematically equal to the task's truth. Runs in workers, as native ones do."""

    kind: Literal["math_answer"] = "math_answer"
    timeout_seconds: Positive = 10.0
    workers: Count = 1


class EndpointConfig(Section):
    """What judgers behind an HTTP endpoint have in common.

    `timeout_seconds` is for one request, `deadline_seconds` for a whole judgement with its retries and pauses.
    """

    api_key_env: Text | None = None
    timeout_seconds: Positive = 30.0
    deadline_seconds: Positive = 120.0
    retries: CountOrZero = 3
    concurrency: Count = 16


class HttpJudgerConfig(EndpointConfig):
    """A service of the user's that takes an episode as JSON and answers with a score."""

    kind: Literal["http"] = "http"
    url: Text


class LlmJudgerConfig(EndpointConfig):
    """A judge model behind an OpenAI-compatible chat completions endpoint. Scores become 0..1."""

    kind: Literal["llm"] = "llm"
    base_url: Text
    model: Text
    prompt: Text | None = None
    prompt_file: Text | None = None
    min_score: float = 0.0
    max_score: float = 1.0
    max_tokens: Count = 512


class PartConfig(Section):
    """One judger's share in a composed one."""

    judger: Text
    weight: float = 1.0


class ComposedJudgerConfig(Section):
    """Several judgers at once (`parts`, a weighted sum unless `merge` says otherwise), or one of several (`by_source`)."""

    kind: Literal["composed"] = "composed"
    parts: dict[str, PartConfig] = Field(default_factory=dict)
    merge: Text | None = None
    timeout_seconds: Positive = 10.0
    by_source: dict[str, Text] = Field(default_factory=dict)
    source_key: Text = "data_source"
    default: Text | None = None

    def names(self) -> Iterator[tuple[KeyPath, str]]:
        """The judgers that it is made of, with their places below it."""
        for name, part in self.parts.items():
            yield ("parts", name, "judger"), part.judger
        for source, judger in self.by_source.items():
            yield ("by_source", source), judger
        if self.default is not None:
            yield ("default",), self.default


JudgerConfig = Annotated[
    NativeJudgerConfig
    | IntegerAnswerConfig
    | MathAnswerConfig
    | HttpJudgerConfig
    | LlmJudgerConfig
    | ComposedJudgerConfig,
    Field(discriminator="kind"),
]
