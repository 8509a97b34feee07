"""A worker that behaves as if it were in another process."""

from __future__ import annotations

import asyncio
import pickle

from loopwright.errors import WorkerLostError
from loopwright.ports import RolloutWorker
from loopwright.types import Rollout, RolloutKey, RolloutRequest, Split


class WorkerElsewhere:
    """Passes requests on to `worker`. Everything is pickled in both directions.

    `lose` names rollouts whose worker dies at once. `silence` names those whose worker sends nothing any more.
    """

    def __init__(self, worker: RolloutWorker) -> None:
        self._worker = worker
        self.lose: set[RolloutKey] = set()
        self.silence: set[RolloutKey] = set()
        self.cancelled: list[RolloutKey] = []
        self._since: dict[RolloutKey, float] = {}

    async def run(self, request: RolloutRequest) -> Rollout:
        sent: RolloutRequest = pickle.loads(pickle.dumps(request))
        if sent.key in self.lose:
            raise WorkerLostError(f"the worker of {sent.key} died", remedy="none: the test asked for it")
        self._since[sent.key] = asyncio.get_running_loop().time()
        try:
            if sent.key in self.silence:
                await asyncio.get_running_loop().create_future()
            returned: Rollout = pickle.loads(pickle.dumps(await self._worker.run(sent)))
        except asyncio.CancelledError:
            self.cancelled.append(sent.key)
            raise
        return returned

    def first_attempt(self, split: Split, key: RolloutKey) -> int:
        return self._worker.first_attempt(split, key)

    def stored(self, split: Split, key: RolloutKey) -> None:
        self._worker.stored(split, key)

    def silent_seconds(self, key: RolloutKey) -> float:
        if key not in self.silence:
            return 0.0
        return asyncio.get_running_loop().time() - self._since.get(key, asyncio.get_running_loop().time())
