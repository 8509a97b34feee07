"""The user's own service as a judger: it gets an episode as JSON, and returns a score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopwright.judgers.endpoint import JudgeEndpoint
from loopwright.judgers.one_by_one import MemberJudger
from loopwright.judgers.verdict import Signature, finite, short_repr
from loopwright.types import Episode, Scored, Task


class HttpJudger(MemberJudger):
    """POSTs `{task, messages, answer, truth, metadata}` and expects `{score, parts?, answer?, evidence?}`."""

    def __init__(self, signature: Signature, endpoint: JudgeEndpoint) -> None:
        self._signature = signature
        self._endpoint = endpoint

    @property
    def name(self) -> str:
        return self._signature.name

    async def judge(self, task: Task, episode: Episode) -> Scored:
        said = await self._endpoint.post(
            {
                "task": task.id,
                "messages": [dict(message) for message in episode.messages],
                "answer": episode.answer,
                "truth": task.truth,
                "metadata": dict(task.metadata),
            }
        )
        scored = _scored(said)
        if scored is None:
            raise self._signature.error(
                f"answered with {short_repr(said)}",
                remedy='let it answer {"score": a finite number}, optionally with "parts": {name: number}, '
                '"answer": text and "evidence": text',
                error="WrongAnswer",
            )
        return scored


def _scored(said: Any) -> Scored | None:
    """The answer as a score. None if any part of it is wrong."""
    if not isinstance(said, Mapping):
        return None
    score, parts, answer = finite(said.get("score")), said.get("parts") or {}, said.get("answer")
    evidence = said.get("evidence")
    texts_are_right = isinstance(answer, str | None) and isinstance(evidence, str | None)
    if score is None or not isinstance(parts, Mapping) or not texts_are_right:
        return None
    numbers = {name: number for name, part in parts.items() if (number := finite(part)) is not None}
    return Scored(score, numbers, answer, evidence) if len(numbers) == len(parts) else None
