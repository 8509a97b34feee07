"""Which workers a gateway takes.

The invariants: all workers that serve agents have one model, that of the first of them, as far as they tell. A gateway
works for a run or for such workers, and never for both: whoever came later is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from loopwright.errors import RefusedError
from loopwright.gateway.offer import Offer, Served
from loopwright.gateway.relay.hello import HELD_BY_A_RUN, Hello, WorkerModel
from loopwright.gateway.relay.workers import RelayedWorker, RelayedWorkers
from loopwright.gateway.runs import Runs

OTHER_MODEL = 422


class WorkerEngines(Protocol):
    """What the workers that serve agents are to the gateway: one engine."""

    async def served(self, model: WorkerModel) -> tuple[Served, Callable[[], float]]:
        """The model of the first worker, and the clock of held seconds. Raises LoopwrightError if it cannot be used."""
        ...

    def join(self, worker: RelayedWorker, version: int) -> None:
        """From now on the worker gets calls while it is connected."""
        ...


@dataclass(frozen=True, slots=True)
class Relay:
    """All workers that dial in, and the engines of those that serve agents."""

    workers: RelayedWorkers
    engines: WorkerEngines


class Admission:
    """Decides which workers are taken."""

    def __init__(self, relay: Relay, offer: Offer, runs: Runs) -> None:
        self._engines = relay.engines
        self._offer = offer
        self._runs = runs
        self._model: WorkerModel | None = None
        self._changing = asyncio.Lock()

    async def admit(self, hello: Hello, worker: RelayedWorker) -> None:
        """Raises RefusedError if the worker is not taken. One without a model is a run, which registers besides."""
        if hello.model is None:
            return
        async with self._changing:
            await self._check(hello.model)
            self._engines.join(worker, hello.model.version)

    async def _check(self, model: WorkerModel) -> None:
        if self._model is not None:
            if not self._model.is_same(model):
                raise RefusedError(
                    f"the workers of this gateway serve {_described(self._model)}, and not {_described(model)}",
                    remedy="serve that model, or dial another gateway",
                    status=OTHER_MODEL,
                )
            self._model = replace(self._model, digest=self._model.digest or model.digest)
            return
        self._check_no_run()
        served, held = await self._engines.served(model)
        # A run may have come while the tokenizer was loaded.
        self._check_no_run()
        self._model = model
        self._offer.change(served, held)

    def _check_no_run(self) -> None:
        if self._runs.holder is not None or self._offer.now is not None:
            raise RefusedError(
                f"{self._runs.holder or 'a run'} holds this gateway",
                remedy="wait for that run to end, or dial another gateway",
                status=HELD_BY_A_RUN,
            )


def _described(model: WorkerModel) -> str:
    files = f" from files with digest {model.digest[:12]}" if model.digest else ""
    return f"{model.name} with a context of {model.max_context} tokens{files}"
