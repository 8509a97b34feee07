"""Judgers made of judgers: several at once, or one that is chosen by the source of the task.

Every part's score is kept by name; nested names are joined by a slash. There is no score without all parts: if one of
them fails, the whole judger fails and names that part (R2).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from loopwright.core.together import together
from loopwright.errors import JudgeError
from loopwright.judgers.one_by_one import MemberJudger
from loopwright.judgers.verdict import Signature
from loopwright.ports import Judger
from loopwright.types import Episode, Scored, Task

Merge = Callable[[Mapping[str, Scored]], Awaitable[Scored]]
"""Makes one score from the scores of the parts."""


@dataclass(frozen=True, slots=True)
class Part:
    """A judger, and the name of its score."""

    name: str
    judger: Judger


class SeveralJudgers(MemberJudger):
    """All parts judge at the same time, and `merge` makes one score from their scores."""

    def __init__(self, name: str, parts: Sequence[Part], merge: Merge) -> None:
        self._name = name
        self._parts = parts
        self._merge = merge

    @property
    def name(self) -> str:
        return self._name

    async def judge(self, task: Task, episode: Episode) -> Scored:
        scores = await self._scores(task, episode)
        total = await self._merge(scores)
        named = {name: value for part, scored in scores.items() for name, value in _named(part, scored).items()}
        answer = next((scored.answer for scored in (total, *scores.values()) if scored.answer is not None), None)
        # A judger's score keeps its name, even if `merge` uses the same name for a part of its own.
        return Scored(total.value, {**total.parts, **named}, answer, _evidence({"": total, **scores}))

    async def _scores(self, task: Task, episode: Episode) -> dict[str, Scored]:
        """The scores of all parts. If some fail, the failure of the first part in their order is raised, not the
        earliest one.

        A failure does not stop the other parts, because a cancelled part would lose its worker process.
        """

        async def outcome(part: Part) -> Scored | JudgeError:
            try:
                return await _judge_part(self._name, part, task, episode)
            except JudgeError as error:
                return error

        scores = dict[str, Scored]()
        for part, judged in zip(self._parts, await together(map(outcome, self._parts)), strict=True):
            if isinstance(judged, JudgeError):
                raise judged
            scores[part.name] = judged
        return scores


class JudgerBySource(MemberJudger):
    """Each task is judged by the judger of its source. The task's metadata names the source under `key`."""

    def __init__(self, name: str, judgers: Mapping[str, Judger], key: str, default: Judger | None) -> None:
        self._name = name
        self._judgers = judgers
        self._key = key
        self._default = default

    @property
    def name(self) -> str:
        return self._name

    async def judge(self, task: Task, episode: Episode) -> Scored:
        source = task.metadata.get(self._key)
        judger = self._judgers.get(str(source), self._default)
        if judger is None:
            raise JudgeError(
                f"judger {self._name!r} has no judger for task {task.id!r}, whose {self._key} is {source!r}; "
                f"it has {', '.join(self._judgers)}",
                remedy="add the source to `by_source`, or a `default`",
                judger=self._name,
                error="UnknownSource",
            )
        scored = await _judge_part(self._name, Part(judger.name, judger), task, episode)
        return Scored(scored.value, _named(judger.name, scored), scored.answer, scored.evidence)


def weighted_sum(name: str, weights: Mapping[str, float]) -> Merge:
    """The merge function of the judger `name`: a weighted sum."""

    async def merge(scores: Mapping[str, Scored]) -> Scored:
        total = sum(weights[part] * scored.value for part, scored in scores.items())
        if not math.isfinite(total):
            values = ", ".join(f"{part} {scored.value:g}" for part, scored in scores.items())
            raise Signature(name, "weighted sum").error(
                f"gives no score: the sum is {total:g}, of the parts {values}",
                remedy="lower the weights, or bound the parts' scores",
                error="Overflow",
            )
        return Scored(total)

    return merge


async def _judge_part(whole: str, part: Part, task: Task, episode: Episode) -> Scored:
    try:
        (scored,) = await part.judger.score(task, [episode])
        return scored
    except JudgeError as error:
        facts = {"error": "JudgeError", **error.facts, "judger": whole, "part": part.name}
        raise JudgeError(
            f"judger {whole!r}, part {part.name!r}: {error.message}", remedy=error.remedy, **facts
        ) from error


def _evidence(scores: Mapping[str, Scored]) -> str | None:
    """The evidence of all parts, each with its name."""
    told = [(name, scored.evidence) for name, scored in scores.items() if scored.evidence]
    return "\n\n".join(f"{name}: {text}" if name else text for name, text in told) or None


def _named(part: str, scored: Scored) -> dict[str, float]:
    return {part: scored.value, **{f"{part}/{name}": value for name, value in scored.parts.items()}}
