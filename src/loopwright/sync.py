"""The Python door for programs without an event loop: the same run, and calls that wait.

The event loop runs inside each call, in the caller's thread, and stands still between calls. There is no hidden thread,
so `open_run` refuses to open a run inside an event loop that is running.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from loopwright import api
from loopwright.config import ConfigLike, RunConfig
from loopwright.core.together import cancel_leftovers
from loopwright.errors import RunError
from loopwright.types import Rollout

if TYPE_CHECKING:
    from loopwright.build import Run
    from loopwright.trainers.step import Step

__all__ = ["SyncRun", "open_run"]

T = TypeVar("T")


class SyncRun:
    """A run that is open. Each method does what that of `loopwright.Run` does, and returns when it is done."""

    def __init__(self, run: Run, runner: asyncio.Runner) -> None:
        self._run = run
        self._runner = runner
        self._is_closed = False

    @property
    def config(self) -> RunConfig:
        return self._run.config

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._run.path

    @property
    def version(self) -> int:
        """The version of the weights: how many steps they were trained."""
        return self._run.version

    @property
    def is_finished(self) -> bool:
        """Whether the last step was reached, and all that is due after it is done."""
        return self._run.is_finished

    def train(self) -> bool:
        """Train to the end, export the model and write the report. False when the run was stopped before."""
        return self._wait(self._run.train())

    def steps(self) -> Iterator[Step]:
        """Train step by step, to the end or until the run is to stop. Whoever leaves earlier may go on later."""
        while (step := self.step()) is not None:
            yield step
            if step.is_last:
                return

    def step(self) -> Step | None:
        """Train one step. None when no step is left, or when the run is to stop."""
        return self._wait(self._run.step())

    def evaluate(self) -> Mapping[str, float]:
        """Evaluate the weights as they are on the evaluation tasks. The metrics are also logged for their step."""
        return self._wait(self._run.evaluate())

    def roll_out(self, groups: int) -> list[Rollout]:
        """Sample rollouts of `groups` tasks with the weights as they are, and score them. Nothing is trained or stored.

        Every call takes the first training tasks, so that two calls can be compared.
        """
        return self._wait(self._run.roll_out(groups))

    def trajectories(self, step: int | None = None) -> Iterator[Rollout]:
        """The stored rollouts that train step `step` was trained on, or those of all steps, one after the other."""
        return self._run.trajectories(step)

    def stop(self) -> None:
        """End the training after a checkpoint. A signal handler or another thread may call it."""
        if not self._is_closed:
            self._runner.get_loop().call_soon_threadsafe(self._run.stop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            if self._is_closed:
                raise RunError("the run is closed", remedy="open it again")
            if self._runner.get_loop().is_running():
                raise RunError(
                    "the run is busy with another call, in another thread or around this one",
                    remedy="wait for that call first",
                )
        except RunError:
            work.close()
            raise
        return self._runner.run(work)


@contextmanager
def open_run(
    config: ConfigLike,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    base: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    allow_config_change: bool = False,
    env: Mapping[str, str] | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Iterator[SyncRun]:
    """Open a run: `with open_run(config) as run:`. The arguments are those of `loopwright.open_run`."""
    _refuse_inside_a_loop()
    opening = api.open_run(
        config, overrides, base=base, fresh=fresh, allow_config_change=allow_config_change, env=env, cache=cache
    )
    with asyncio.Runner() as runner:
        try:
            run = SyncRun(runner.run(opening.__aenter__()), runner)
            try:
                yield run
            except BaseException as error:
                runner.run(opening.__aexit__(type(error), error, error.__traceback__))
                raise
            else:
                runner.run(opening.__aexit__(None, None, None))
            finally:
                run._is_closed = True
        finally:
            runner.run(cancel_leftovers())


def _refuse_inside_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RunError(
        "loopwright.sync.open_run was called inside an event loop that is running (a notebook, an async function)",
        remedy="use the async door there: `async with loopwright.open_run(config) as run:` and `await run.train()`",
    )
