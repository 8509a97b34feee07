"""The one thread in which a process runs torch.

OpenMP keeps a pool of workers for every thread that computes. When two pools together have more threads than the
machine has cores, the workers sleep between any two kernels instead of spinning. Decoding took twice as long in a
second thread (measured, docs/adr/0002). So engine, learner and loading share one thread. It does jobs in the order of
their submission. A long job is split into short ones, so that other jobs can run in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ComputeThread:
    """Use it as a context manager. Leaving waits for all submitted jobs."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="loopwright-compute")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in the thread and wait for what it returns or raises."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))

    def post(self, job: Callable[[], None]) -> None:
        """Run `job` after all earlier ones. It must not raise, because nobody waits for it."""
        self._executor.submit(job)
