"""Which chains of a rollout are trained (T6). The others stay recorded, and change nothing of what is trained.

What the user's own choice does wrong is an error that fails the rollout: a chain is never trained by mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loopwright.types import RecordedChain
from loopwright.workers import ChoiceBlame, FunctionHolder, UserFunction


class MainChains:
    """Those of the main conversation."""

    async def choose(self, chains: Sequence[RecordedChain]) -> frozenset[int]:
        return frozenset(chain.number for chain in chains if chain.is_main)


class UserChoice(FunctionHolder):
    """The user's `choose(chains)`, sync or async, as `async with`. It returns those of the chains that are trained."""

    def __init__(self, path: str, base: Path, timeout_seconds: float) -> None:
        self._blame = _Blame("agent.train", path)
        super().__init__(UserFunction(self._blame, base, timeout_seconds))

    async def choose(self, chains: Sequence[RecordedChain]) -> frozenset[int]:
        return await self._function.call(self._blame.numbers, tuple(chains))


class _Blame(ChoiceBlame):
    def numbers(self, chosen: object) -> frozenset[int]:
        if isinstance(chosen, list | tuple | set | frozenset) and all(isinstance(one, RecordedChain) for one in chosen):
            return frozenset(chain.number for chain in chosen)
        raise self.returned(chosen, "a list of the chains to train")
