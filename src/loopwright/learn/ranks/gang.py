"""All ranks of a learner together: they are asked together, and lost together.

When one is lost, the others are within a collective that never ends, and the lost one's shards are gone. So all are of
no use any more, and every later call raises the same error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from loopwright.errors import LearnerError, LoopwrightError, RemoteError
from loopwright.learn.ranks.messages import RankCall, RankDone, RankFailed, RankPlace, RankWork, WeightOffer
from loopwright.learn.ranks.remote import OnOffer, RemoteRank

LOOKS = 20
"""How often it looks within the silence that is allowed."""
START_SECONDS = 300.0
"""How long a rank may be silent when it starts, at least."""
SETTLE_SECONDS = 3.0
"""When a rank fails because a peer has gone, the peer's end is heard of within so many seconds."""


_Asked = asyncio.Task[RankDone | RankFailed]


async def _no_offer(offer: WeightOffer) -> None:
    raise LearnerError("a rank offered weights that nobody asked for", remedy="please report this")


class Gang:
    """The ranks of a learner, in their order."""

    def __init__(self, ranks: Sequence[RemoteRank], silence_seconds: float) -> None:
        self._ranks = ranks
        self._silence_seconds = silence_seconds
        self._broken: LoopwrightError | None = None
        self._one_call = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._ranks)

    def standing(self) -> list[dict[str, Any]]:
        """Each rank: whether it is alive, and when it was last heard of. Nobody is asked for it."""
        return [{"rank": one.number, "alive": not one.lost.done(), "heard": one.heard_at} for one in self._ranks]

    async def ask(self, work: RankWork, args: Sequence[tuple[Any, ...]], on_offer: OnOffer = _no_offer) -> list[Any]:
        """Let all ranks do this, each with its own arguments, and return their answers in order."""
        return await self._tell([RankCall(work, own) for own in args], on_offer, self._silence_seconds)

    async def open(self, places: Sequence[RankPlace]) -> list[Any]:
        """Tell each rank its place, and return what they say of themselves when they are ready. They cannot beat before
        they have imported torch."""
        return await self._tell(places, _no_offer, max(self._silence_seconds, START_SECONDS))

    async def _tell(self, messages: Sequence[object], on_offer: OnOffer, silence_seconds: float) -> list[Any]:
        """Send each rank its message, and return their answers in order."""
        async with self._one_call:
            if self._broken is not None:
                raise self._broken
            try:
                return await self._answers(messages, on_offer, silence_seconds)
            except LoopwrightError as error:
                self._broken = error
                raise
            except BaseException:
                # Nobody waits for the answers any more, and they would be taken for those to the next call.
                self._broken = LearnerError(
                    "the ranks were left in the middle of a call", remedy="the same command goes on from the checkpoint"
                )
                raise

    async def reply(self, number: int, value: object) -> None:
        """Say something to a rank that has made an offer."""
        await self._ranks[number].tell(value)

    async def _answers(self, messages: Sequence[object], on_offer: OnOffer, silence_seconds: float) -> list[Any]:
        asked = [
            asyncio.create_task(_ask(rank, own, on_offer)) for rank, own in zip(self._ranks, messages, strict=True)
        ]
        waiting: set[asyncio.Future[Any]] = set(asked)
        answers: list[Any] = [None] * len(asked)
        try:
            while waiting:
                done, _ = await asyncio.wait(
                    waiting | {rank.lost for rank in self._ranks},
                    timeout=silence_seconds / LOOKS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for rank in self._ranks:
                    if rank.lost in done:
                        raise await self._cause(asked) or rank.lost.result()
                for number, one in enumerate(asked):
                    if one in done:
                        answer = one.result()
                        if isinstance(answer, RankFailed):
                            raise await self._failure(answer, number, asked)
                        answers[number] = answer.value
                waiting -= done
                asked_still = [rank for rank, task in zip(self._ranks, asked, strict=True) if task in waiting]
                _require_beats(asked_still, silence_seconds)
            return answers
        finally:
            for task in asked:
                task.cancel()
            await asyncio.wait(asked)

    async def _failure(self, failed: RankFailed, number: int, asked: Sequence[_Asked]) -> LoopwrightError:
        """Why the call failed: a rank that lost its peer says only that, or something that nobody has foreseen."""
        others = [rank.lost for rank in self._ranks if rank.number != number]
        if others and (failed.error is None or isinstance(failed.error, RemoteError)):
            await asyncio.wait(others, timeout=SETTLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return await self._cause(asked) or self._ranks[number].lost_by(f"it raised {failed.words}")

    async def _cause(self, asked: Sequence[_Asked]) -> LoopwrightError | None:
        """What came first. A rank that says what went wrong ends then, in whatever way, and so do those that waited for
        it. Else one that was killed has taken the others along. What nobody has foreseen may come of that too."""
        await asyncio.wait([rank.lost for rank in self._ranks], timeout=SETTLE_SECONDS / 10)
        gone = [rank.lost.result() for rank in self._ranks if rank.lost.done()]
        killed = [error for error in gone if "killed" in str(error.facts.get("cause"))]
        answers = [one.result() for one in asked if one.done() and one.exception() is None]
        failed = [one.error for one in answers if isinstance(one, RankFailed) and one.error is not None]
        told = [error for error in failed if not isinstance(error, RemoteError)]
        return next(iter(told or killed or failed or gone), None)


def _require_beats(waited_for: Sequence[RemoteRank], most: float) -> None:
    """Raise if a rank has been silent, or all have done nothing, for too long. In a collective all do nothing when one
    is stopped, so the one that says nothing is looked for first."""
    if not waited_for:
        return
    now = time.monotonic()
    silent = max(waited_for, key=lambda rank: rank.silence(now)[0])
    if silent.silence(now)[0] >= most:
        raise silent.lost_by(f"it has said nothing for {most:g} s (trainer.stall_seconds)")
    if all(rank.silence(now)[1] >= most for rank in waited_for):
        stuck = max(waited_for, key=lambda rank: rank.silence(now)[1])
        raise stuck.lost_by(f"it has done nothing for {most:g} s (trainer.stall_seconds)")


async def _ask(rank: RemoteRank, message: object, on_offer: OnOffer) -> RankDone | RankFailed:
    await rank.tell(message)
    return await rank.answer(on_offer)
