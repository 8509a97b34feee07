"""Chooses which chains of a rollout are trained (T6). The others stay recorded, and do not affect the trained ones.

If the user's own choice does something wrong, the rollout fails, so no chain is trained by mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loopwright.types import RecordedChain
from loopwright.workers import ChoiceBlame, FunctionHolder, UserFunction


class MainChains:
    """Trains the chains of the main conversation."""

    async def choose(self, chains: Sequence[RecordedChain]) -> frozenset[int]:
        return frozenset(chain.number for chain in chains if chain.is_main)


class UserChoice(FunctionHolder):
    """The user's `choose(chains)`, sync or async, which returns the chains to train. Use it as `async with`."""

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
