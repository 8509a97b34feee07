"""The learner of several ranks, in the driver: it decides what a step computes, and the ranks compute it.

Advantages, token weights and the learning rate depend on the whole step, so they are computed here, once. Each rank
gets its own part only. The driver holds no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open

from loopwright.core.together import to_its_end
from loopwright.errors import LoopwrightError
from loopwright.learn.plan import StepPlan, plan_step
from loopwright.learn.ranks.cut import RowCost, cut_plan
from loopwright.learn.ranks.gang import Gang
from loopwright.learn.ranks.messages import RankReport, RankWork, WeightOffer, WeightsTaken
from loopwright.learn.recipe import Recipe
from loopwright.learn.state import while_written
from loopwright.learn.token_numbers import with_chains
from loopwright.models.compute import ComputeThread
from loopwright.ports import WeightSink
from loopwright.ports.learner import StepReport
from loopwright.types import Group

OnPart = Callable[[int, int, RankReport], object]
"""Gets the number of a rank, the step, and what the rank says of its part of it."""


class RankedLearner:
    """Trains on the ranks of `gang`. `describes` is for people: where and how they compute. `on_part` is told what each
    rank did in a step."""

    def __init__(
        self,
        gang: Gang,
        recipe: Recipe,
        cost: RowCost,
        tokenizer: Any,
        compute: ComputeThread,
        describes: str,
        on_part: OnPart = lambda rank, step, report: None,
    ) -> None:
        self._gang = gang
        self._recipe = recipe
        self._cost = cost
        self._tokenizer = tokenizer
        self._compute = compute
        self._on_part = on_part
        self._pace: list[float | None] = [None] * len(gang)
        self._version = 0
        self.describes = f"{len(gang)} ranks: {describes}"

    @property
    def version(self) -> int:
        return self._version

    def standing(self) -> list[dict[str, Any]]:
        """Each rank, with its tokens per second in the last step."""
        return [{**one, "tokens_per_second": pace} for one, pace in zip(self._gang.standing(), self._pace, strict=True)]

    async def step(self, groups: Sequence[Group]) -> StepReport:
        # A caller that is cancelled leaves no answers behind: the step is made, as in one process.
        return await to_its_end(self._step(groups))

    async def save(self, folder: Path) -> None:
        await to_its_end(self._all(RankWork.SAVE, folder))
        await self._compute.run(self._tokenizer.save_pretrained, folder)

    async def load(self, folder: Path) -> None:
        self._version = (await to_its_end(self._all(RankWork.LOAD, folder)))[0]

    async def logprobs(self, ids: Sequence[int], temperature: float = 1.0) -> tuple[float, ...]:
        found: tuple[float, ...] = (await to_its_end(self._all(RankWork.LOGPROBS, tuple(ids), temperature)))[0]
        return found

    async def publish(self, sink: WeightSink) -> None:
        await to_its_end(self._publish(sink))

    async def export(self, folder: Path) -> None:
        with while_written(folder):
            await self._compute.run(partial(folder.mkdir, parents=True, exist_ok=True))
            await to_its_end(self._all(RankWork.EXPORT, folder))
            await self._compute.run(self._tokenizer.save_pretrained, folder)

    async def _all(self, work: RankWork, *args: Any) -> list[Any]:
        return await self._gang.ask(work, [args] * len(self._gang))

    async def _step(self, groups: Sequence[Group]) -> StepReport:
        plan, parts = await self._compute.run(self._plan, groups)
        reports: list[RankReport] = await self._gang.ask(RankWork.STEP, [(part,) for part in parts])
        numbers = reports[0].numbers
        for report in reports[1:]:
            numbers.add(report.numbers)
        self._version = plan.step
        for rank, report in enumerate(reports):
            self._pace[rank] = report.tokens / report.seconds
            self._on_part(rank, plan.step, report)
        metrics = {"lr": plan.lr, **numbers.meter.metrics(), **_of_ranks(reports)}
        return StepReport(plan.step, metrics, with_chains(plan.rollouts, numbers.chains))

    def _plan(self, groups: Sequence[Group]) -> tuple[StepPlan, list[StepPlan]]:
        plan = plan_step(self._recipe, groups, self._version + 1)
        return plan, cut_plan(plan, len(self._gang), self._cost, self._recipe.micro_batch_tokens)

    async def _publish(self, sink: WeightSink) -> None:
        refused: list[LoopwrightError] = []

        async def pass_on(offer: WeightOffer) -> None:
            if not refused:
                try:
                    await self._compute.run(_give, sink, offer)
                except LoopwrightError as error:
                    # The ranks go on to the end, which is the same for all: what they have learned can still be saved.
                    refused.append(error)
            await self._gang.reply(0, WeightsTaken())

        await self._gang.ask(RankWork.PUBLISH, [()] * len(self._gang), pass_on)
        if refused:
            raise refused[0]


def _give(sink: WeightSink, offer: WeightOffer) -> None:
    if offer.tensors is not None:
        sink.begin(offer.tensors)
    if offer.bucket is not None:
        with safe_open(offer.bucket, "pt") as bucket:
            # In the order in which they were announced, which is not that of the file.
            sink.take({name: bucket.get_tensor(name) for name in offer.names})


def _of_ranks(reports: Sequence[RankReport]) -> dict[str, float]:
    return {
        f"rank/{number}/{name}": value
        for number, one in enumerate(reports)
        for name, value in (
            ("tokens_per_second", one.tokens / one.seconds),
            ("peak_memory_bytes", float(one.peak_bytes)),
            ("communication_share", one.communication_seconds / one.seconds),
        )
    }
