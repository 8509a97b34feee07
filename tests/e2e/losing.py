"""A learner that is lost at chosen moments, as one whose ranks are processes: its model is its own, and is gone with
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopwright.build import parts
from loopwright.build.standing import Standing
from loopwright.errors import LearnerLostError
from loopwright.learn.learner import TorchLearner
from loopwright.ports import Learner, WeightSink
from loopwright.ports.learner import StepReport
from loopwright.runs.checkpoint import Checkpoint
from loopwright.types import Group, TensorSpec

OpenLearner = Callable[[Standing, Checkpoint | None], AbstractAsyncContextManager[Learner]]


async def no_wait() -> None: ...


@dataclass
class Losses:
    """At which calls the learner is lost, for example `("step", 3)`: at the third one, counted over all learners of a
    run. `before_losing` is awaited first."""

    at: Sequence[tuple[str, int]]
    before_losing: Callable[[], Awaitable[object]] = no_wait
    calls: Counter[str] = field(default_factory=Counter)
    versions: list[int] = field(default_factory=list)
    """The versions at which a learner was opened."""
    trained: list[int] = field(default_factory=list)
    """The steps that were trained, also those that were lost."""

    def come(self, call: str) -> bool:
        self.calls[call] += 1
        return (call, self.calls[call]) in self.at

    def opener(self) -> OpenLearner:
        @asynccontextmanager
        async def open_learner(standing: Standing, latest: Checkpoint | None) -> AsyncIterator[Learner]:
            sampling, compute = standing.sampling, standing.sampling.compute
            model = await compute.run(parts.make_model, sampling.loaded, sampling.cache)
            learner = await compute.run(TorchLearner, model, standing.recipe, compute)
            if latest is not None:
                await learner.load(latest.path)
            losable = LosableLearner(learner, self)
            self.versions.append(learner.version)
            if self.come("open"):
                await losable.lose()
            yield losable

        return open_learner


class LosableLearner:
    """The real learner. When it is lost, every call says so."""

    def __init__(self, learner: TorchLearner, losses: Losses) -> None:
        self._learner = learner
        self._losses = losses
        self._is_lost = False

    @property
    def version(self) -> int:
        return self._learner.version

    @property
    def describes(self) -> str:
        return self._learner.describes

    def standing(self) -> Sequence[Mapping[str, Any]]:
        return self._learner.standing()

    async def lose(self) -> None:
        self._is_lost = True
        await self._losses.before_losing()
        self._check()

    async def step(self, groups: Sequence[Group]) -> StepReport:
        self._check()
        version = self._learner.version
        report = await self._learner.step(groups)
        self._losses.trained.append(version + 1)
        await self._maybe("step")
        return report

    async def save(self, folder: Path) -> None:
        self._check()
        await self._learner.save(folder)
        await self._maybe("save")

    async def load(self, folder: Path) -> None:
        self._check()
        await self._learner.load(folder)

    async def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> tuple[float, ...]:
        self._check()
        await self._maybe("logprobs")
        return await self._learner.logprobs(ids, temperature)

    async def publish(self, sink: WeightSink) -> None:
        self._check()
        if self._losses.come("publish"):
            await self._learner.publish(HalfOfIt(sink))
            await self.lose()
        await self._learner.publish(sink)

    async def export(self, folder: Path) -> None:
        self._check()
        await self._learner.export(folder)
        await self._maybe("export")

    async def _maybe(self, call: str) -> None:
        if self._losses.come(call):
            await self.lose()

    def _check(self) -> None:
        if self._is_lost:
            raise LearnerLostError.of_rank(1, "it was ended by signal 9", "Killed")


class HalfOfIt:
    """Passes on half of the tensors."""

    def __init__(self, sink: WeightSink) -> None:
        self._sink = sink
        self._left = 0

    def begin(self, tensors: Mapping[str, TensorSpec]) -> None:
        self._left = len(tensors) // 2
        self._sink.begin(tensors)

    def take(self, bucket: Mapping[str, Any]) -> None:
        for name, tensor in bucket.items():
            if self._left:
                self._left -= 1
                self._sink.take({name: tensor})
