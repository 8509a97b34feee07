"""The port for agents that are programs: a runner prepares a place for one, runs it there, and reads its reward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from loopwright.ports.sessions import Endpoint
from loopwright.types import Failed, ProgramOutput, RolloutRequest, Scored


class PreparedProgram(Protocol):
    """A place in which one program runs, once."""

    @property
    def output(self) -> ProgramOutput:
        """What the program has written so far."""
        ...

    async def run(self, endpoint: Endpoint, begun: Callable[[], None] = lambda: None) -> None:
        """Run the program to its end. Nothing that it started is left afterwards, also when this is cancelled. `begun`
        is called when the program itself begins: what comes before still sets it up.

        Raises ProgramError if the program failed.
        """
        ...

    async def reward(self, *, out_of_time: bool = False) -> Scored | Failed | None:
        """The program's reward, read after its end. With `out_of_time` it was ended because its time was up. None: a
        judger scores it."""
        ...


class ProgramRunner(Protocol):
    """Runs programs of one kind. It is shared by all rollouts."""

    @property
    def name(self) -> str: ...

    def prepared(self, request: RolloutRequest) -> AbstractAsyncContextManager[PreparedProgram]:
        """Set up a place for one program; leaving removes it. Raises SetupError."""
        ...
