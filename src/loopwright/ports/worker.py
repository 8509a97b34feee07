"""The port for rollouts: a request goes in, and a rollout comes out, in this process or elsewhere."""

from __future__ import annotations

from typing import Protocol

from loopwright.types import Rollout, RolloutKey, RolloutRequest, Split


class RolloutWorker(Protocol):
    """Runs agents. It holds the agent loops and the policies; the driver holds slots, attempts and judgers."""

    async def run(self, request: RolloutRequest) -> Rollout:
        """Run the agent once.

        What it did is unscored, partial or failed; it is scored only where the config sets the reward of an agent that
        raised. An exception of this method is a bug of ours, or an EngineError when the worker is lost (R1).
        Cancelling the call ends the agent.
        """
        ...

    def first_attempt(self, split: Split, key: RolloutKey) -> int:
        """The attempt to begin with: that of `key`, or a later one if an earlier process of the run had begun that."""
        ...

    def stored(self, split: Split, key: RolloutKey) -> None:
        """The driver has stored the rollout, or has handed it on if it is not to be stored. What was kept for it
        elsewhere may go."""
        ...

    def silent_seconds(self, key: RolloutKey) -> float:
        """For how many seconds the process that runs this rollout has sent nothing. It also reports while its agent
        waits."""
        ...
