"""One rank of a learner as the driver sees it: calls go in, answers and beats come out, and it may be lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from loopwright.errors import LearnerLostError, LoopwrightError, WeightsError
from loopwright.learn.ranks.messages import RankBeat, RankDone, RankFailed, WeightOffer

OnOffer = Callable[[WeightOffer], Awaitable[None]]


class RankLine(Protocol):
    """How a rank is reached, wherever it is."""

    async def send(self, value: object) -> None: ...

    async def receive(self) -> Any:
        """What it says next. Raises EOFError when it can say nothing more."""
        ...

    async def ended(self) -> tuple[str, str]:
        """Wait for its end. How it ended, and its last words."""
        ...

    def last_words(self) -> str: ...


class RemoteRank:
    """Reads what a rank says in a task of its own."""

    def __init__(self, number: int, line: RankLine) -> None:
        self.number = number
        self._line = line
        self.heard = self.moved = time.monotonic()
        """When it last said anything, and when it last had done something."""
        self.heard_at: float | None = None
        """The Unix time at which it said something last."""
        self._done = 0
        self._answers: asyncio.Queue[RankDone | RankFailed | WeightOffer] = asyncio.Queue()
        self.lost: asyncio.Future[LoopwrightError] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    def silence(self, now: float) -> tuple[float, float]:
        """For how long it has said nothing, and has done nothing."""
        return now - self.heard, now - self.moved

    def lost_by(self, cause: str) -> LearnerLostError:
        return LearnerLostError.of_rank(self.number, cause, self._line.last_words())

    async def tell(self, value: object) -> None:
        """Send it something. A rank that cannot be reached is found to be lost by its reader."""
        self.heard = self.moved = time.monotonic()
        try:
            await self._line.send(value)
        except OSError:
            await asyncio.shield(self.lost)

    async def answer(self, on_offer: OnOffer) -> RankDone | RankFailed:
        """Its answer to the call. Never comes if it is lost."""
        while isinstance(said := await self._answers.get(), WeightOffer):
            await on_offer(said)
        return said

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})
        self.lost.cancel()

    async def _read(self) -> None:
        try:
            while True:
                said = await self._line.receive()
                self.heard, self.heard_at = time.monotonic(), time.time()
                if not isinstance(said, RankBeat):
                    self.moved = self.heard
                    self._answers.put_nowait(said)
                elif said.done != self._done:
                    self._done, self.moved = said.done, self.heard
        except EOFError:
            how, words = await self._line.ended()
            self.lost.set_result(LearnerLostError.of_rank(self.number, how, words))
        except OSError as error:
            # Weights from another node had no room here. Nobody would read what else it says.
            self.lost.set_result(
                WeightsError(
                    f"the weights of rank {self.number} could not be received: {error}",
                    remedy="free some space there; the same command goes on from the last checkpoint",
                )
            )
