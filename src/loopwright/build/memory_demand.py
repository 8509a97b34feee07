"""What the engines of a run have to do at the same time, and what their caches keep: for the plan of its memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from loopwright.build.eval_plans import eval_modes
from loopwright.config import Loaded, RunConfig, TaskSetConfig
from loopwright.data import open_source
from loopwright.engines.torch.memory_plan import Load
from loopwright.types import EvalMode, ProduceKind, TrainerKind


def answer_tokens(config: RunConfig, *, evaluated: bool, size: int) -> int:
    """The tokens of the longest answer, in training or in evaluation, in conversations of `size` tokens."""
    sets = config.eval.task_sets if evaluated and config.eval else config.task_sets
    wanted = [own.sampling.max_new_tokens or config.rollout.max_new_tokens for own in sets]
    return max(1, min(max(wanted, default=1), size - 1))


@dataclass(frozen=True, slots=True)
class Demand:
    """On one of `engines` engines, by conversations of `size` tokens."""

    loaded: Loaded
    size: int
    engines: int

    def loads(self) -> Iterator[Load]:
        """Of training, and of every way of evaluating, which take turns."""
        config = self.loaded.config
        yield self._load(self._trained_at_once(), config.rollout.samples_per_task, evaluated=False)
        for mode in eval_modes(config.eval) if config.eval else ():
            samples = config.eval.samples if config.eval and mode is EvalMode.SAMPLED else 1
            yield self._load(self._evaluated_at_once(samples), samples, evaluated=True)

    def cached(self) -> int:
        """How many tokens of earlier prompts and answers are cached, until new weights outdate them."""
        config, limit = self.loaded.config, self.loaded.config.rollout.engine.embedded.cache_tokens
        is_bounded = config.trainer.kind is TrainerKind.COLOCATE and not config.eval and not self._filters
        if not is_bounded or not self._is_sync:
            return limit
        answer = answer_tokens(config, evaluated=False, size=self.size)
        group = self.size - answer + config.rollout.samples_per_task * answer
        return min(limit, config.trainer.groups_per_step * group)

    def _load(self, at_once: int, samples: int, *, evaluated: bool) -> Load:
        answer = answer_tokens(self.loaded.config, evaluated=evaluated, size=self.size)
        own = min(self.loaded.config.rollout.engine.embedded.max_batch, math.ceil(at_once / self.engines))
        return Load(own, samples, max(1, self.size - answer), answer)

    def _limit(self) -> int:
        """How many rollouts the run has in flight at most, as `rollouts_in_flight` has it."""
        rollout = self.loaded.config.rollout
        return (
            self.engines * rollout.engine.embedded.max_batch if rollout.concurrency == "auto" else rollout.concurrency
        )

    def _trained_at_once(self) -> int:
        if not self._is_sync:
            return self._limit()
        config = self.loaded.config
        return min(self._limit(), config.trainer.groups_per_step * config.rollout.samples_per_task)

    def _evaluated_at_once(self, samples: int) -> int:
        """Task sets are evaluated one after the other. How many tasks user code makes is not known here."""
        tasks = [self._tasks(own) for own in (self.loaded.config.eval.task_sets if self.loaded.config.eval else ())]
        known = [count for count in tasks if count is not None]
        return self._limit() if len(known) < len(tasks) else min(self._limit(), samples * max(known, default=0))

    def _tasks(self, own: TaskSetConfig) -> int | None:
        return len(open_source(own.data, self.loaded.base)) if own.data.opens_lightly else None

    @property
    def _is_sync(self) -> bool:
        config = self.loaded.config
        kinds = {own.produce or config.produce.kind for own in config.task_sets}
        return kinds <= {ProduceKind.SYNC}

    @property
    def _filters(self) -> bool:
        """Whether groups that are filtered out are replaced by others, as many as it takes."""
        config = self.loaded.config
        return any((own.filter or config.produce.filter) != "none" for own in config.task_sets)
