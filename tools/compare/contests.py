"""What both trees do in turn: the rounds of a benchmark's worker, and three steps of the demo."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

from benchmarks.process import Program, Worker
from loopwright.errors import BenchError
from tools.compare.deadline import Deadline
from tools.compare.trees import Tree
from tools.compare.verdict import Rounds

FEWEST, MOST = 3, 9
"""Counted rounds of each tree."""
DEMO_THREADS = 2
DEMO_SECONDS = 600.0
PREPARE_SECONDS = 300.0

# Run in the tree itself: what a benchmark's worker is told may differ between commits.
PREPARE = """
import json, sys
from pathlib import Path
from benchmarks.catalogue import find
from benchmarks.setting import Places
name, folder, cache = sys.argv[1:]
benchmark = find(name)
prepared = benchmark.prepare(Path(folder), Places(Path.cwd(), Path(cache)))
print(json.dumps({"module": benchmark.module, "threads": benchmark.threads, "spec": prepared.ours}))
"""

COSTS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "gateway": lambda answer: 1.0 / answer["rates"][0],
    "manager": lambda answer: float(sum(answer["cases"])),
}
"""What counts of a worker's answer; for all others it is the seconds of the round."""


class Contest(Protocol):
    @property
    def name(self) -> str: ...

    async def run(self, old: Tree, new: Tree, folder: Path, deadline: Deadline) -> Rounds:
        """Rounds of both trees in turn, until the deadline, and at least a few."""
        ...


class WorkerContest:
    """One benchmark, ours alone."""

    def __init__(self, name: str, cache: Path) -> None:
        self.name = name
        self._cache = cache
        self._cost: Callable[[Mapping[str, Any]], float] = COSTS.get(name, lambda answer: float(answer["seconds"]))

    async def run(self, old: Tree, new: Tree, folder: Path, deadline: Deadline) -> Rounds:
        async with AsyncExitStack() as stack:
            started = [self._start(tree, folder / tree.name) for tree in (old, new)]
            workers = [await stack.enter_async_context(worker) for worker in started]
            for worker in workers:
                await worker.round()
            taken: tuple[list[float], list[float]] = ([], [])
            while _goes_on(len(taken[0]), deadline):
                for worker, seconds in zip(workers, taken, strict=True):
                    seconds.append(self._cost(await worker.round()))
                    _say(f"{self.name}: {worker.name} {seconds[-1]:.4g} s")
        return Rounds(tuple(taken[0]), tuple(taken[1]))

    def _start(self, tree: Tree, folder: Path) -> AbstractAsyncContextManager[Worker]:
        folder.mkdir()
        command = [sys.executable, "-c", PREPARE, self.name, str(folder), str(self._cache)]
        done = _finish(command, tree, 1, PREPARE_SECONDS)
        found = json.loads(done.stdout.splitlines()[-1])
        environment = tree.environment(found["threads"])
        program = Program(tree.name, Path(sys.executable), found["module"], tree.path, environment)
        return Worker.start(program, found["spec"], folder / "worker.log")


class DemoContest:
    """Three steps of the demo without its evaluations, from the command to its end."""

    name = "demo"

    async def run(self, old: Tree, new: Tree, folder: Path, deadline: Deadline) -> Rounds:
        for tree in (old, new):
            self._train(tree, folder, steps=1)
        taken: tuple[list[float], list[float]] = ([], [])
        while _goes_on(len(taken[0]), deadline):
            for tree, seconds in zip((old, new), taken, strict=True):
                started = time.perf_counter()
                self._train(tree, folder, steps=3)
                seconds.append(time.perf_counter() - started)
                _say(f"{self.name}: {tree.name} {seconds[-1]:.4g} s")
        return Rounds(tuple(taken[0]), tuple(taken[1]))

    def _train(self, tree: Tree, folder: Path, steps: int) -> None:
        command = [sys.executable, "-m", "loopwright.cli", "train", "examples/arithmetic.yaml", "--fresh"]
        command += [
            f"trainer.run_dir={folder / tree.name}",
            f"trainer.steps={steps}",
            "eval=null",
            "track.report=false",
        ]
        _finish(command, tree, DEMO_THREADS, DEMO_SECONDS)


def _goes_on(rounds: int, deadline: Deadline) -> bool:
    return rounds < FEWEST or (rounds < MOST and not deadline.is_over)


def _finish(command: list[str], tree: Tree, threads: int, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command of the tree to its end. Nothing else happens meanwhile: it is what is measured."""
    done = subprocess.run(
        command,
        cwd=tree.path,
        env=tree.environment(threads),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise BenchError(
            f"the {tree.name} tree cannot run {command[2]}: {done.stderr.strip()[-2000:]}",
            remedy="name a benchmark that both trees have, and a commit that this environment can run",
        )
    return done


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
