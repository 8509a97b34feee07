"""Scores the stored rollouts of a run with a judger of the user's choice, without sampling.

It only reads the run, a group at a time, so it works beside a run and takes no more memory for a long one. A failure of
the judger is no score (R2): it is recorded, and the next call asks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from loopwright.core.redaction import Redactor, with_clean_reward
from loopwright.core.together import together
from loopwright.errors import BudgetError
from loopwright.ports import Judger
from loopwright.produce.judging import judged
from loopwright.runs.rejudged_scores import Judgement, Place, RejudgedScores
from loopwright.runs.stored_run import StoredGroup, StoredRun
from loopwright.types import Failed, GroupStatus, Rollout, Scored

AT_ONCE = 16
"""How many pieces of work a judger has at a time. Judgers limit their own calls; this limits what is in memory."""
MOST_FAILURES = 20
"""How many judgements may fail in a row. After that nothing would come of the others."""
ENDED = frozenset({GroupStatus.COMPLETED, GroupStatus.EXPIRED, GroupStatus.CONSUMED, GroupStatus.FILTERED})
"""The groups whose members are all there. Those of other groups are judged alone, or not yet."""
UNDONE = frozenset({GroupStatus.DISCARDED, GroupStatus.ROLLED_BACK})
"""The groups that the run has undone. They are not judged."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """What the judger is asked at once: one rollout, or the members of a group."""

    round: int
    rollouts: tuple[Rollout, ...]


class Rejudging:
    """One judger, asked about the rollouts of `run` that `scores` does not have yet, of these task sets only."""

    def __init__(
        self, run: StoredRun, judger: Judger, scores: RejudgedScores, task_sets: frozenset[str], *, attempts: int
    ) -> None:
        self._run = run
        self._judger = judger
        self._scores = scores
        self._task_sets = task_sets
        self._attempts = attempts
        self._failures = 0
        self.judged = 0
        """How many rollouts were judged by this call."""

    async def run(self, redact: Redactor) -> None:
        """Judge all of them. Raises BudgetError if the judger fails again and again."""
        scored = {place for place, one in self._scores.judgements().items() if one.after is not None}
        pieces = self._pieces(scored)
        await together(self._work(pieces, redact) for _ in range(AT_ONCE))

    async def _work(self, pieces: Iterator[_Piece], redact: Redactor) -> None:
        for piece in pieces:
            for before, after in zip(
                piece.rollouts, await judged(piece.rollouts, self._judger, self._attempts), strict=True
            ):
                self._note(before, piece.round, with_clean_reward(after, redact))

    def _note(self, before: Rollout, round: int, after: Rollout) -> None:
        self._scores.add(Judgement.of(before, round, after.reward))
        self.judged += 1
        self._failures = self._failures + 1 if isinstance(after.reward, Failed) else 0
        if isinstance(after.reward, Failed) and self._failures >= MOST_FAILURES:
            raise BudgetError(
                f"judger {self._judger.name!r} failed {self._failures} times in a row: {after.reward.detail}",
                remedy="mend the judger, then run the same command: what was judged is kept",
            )

    def _pieces(self, scored: set[Place]) -> Iterator[_Piece]:
        for group in self._run.groups():
            if group.key[0] in self._task_sets and group.status not in UNDONE:
                yield from self._of(group, scored)

    def _of(self, group: StoredGroup, scored: set[Place]) -> Iterable[_Piece]:
        round = group.key[2]
        members = tuple(one for one in self._run.members(group.key) if _was_judged(one))
        missing = tuple(one for one in members if (one.key, round) not in scored)
        if not missing:
            return ()
        if not self._judger.judges_groups:
            return [_Piece(round, (one,)) for one in missing]
        # A ranking of a part would not be the ranking.
        return [_Piece(round, members)] if group.status in ENDED else ()


def _was_judged(rollout: Rollout) -> bool:
    """Whether a judger is asked about it: not if the agent raised, and `agent.on_agent_error` gave the number."""
    if isinstance(rollout.reward, Scored):
        return "agent_error" not in rollout.reward.parts and rollout.episode is not None
    return rollout.awaits_judge
