"""Running a benchmark: every side in a process of its own, round by round in turn.

    ours, peer, limit -> ours, peer, limit -> ...

The first round of each warms up and does not count. A slow moment of the machine meets all sides, not one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Round
from benchmarks.flops import Layers
from benchmarks.process import Program, Worker, environment_of
from benchmarks.setting import Benchmark, Places, Prepared, Spec
from benchmarks.work import Pace, Work
from loopwright.errors import BenchError

OURS = "loopwright"
LIMIT = "limit"

Say = Callable[[str], None]
"""Tells a waiting person what has happened."""

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """What one side did: figures per round, in order."""

    name: str
    versions: Mapping[str, str]
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished benchmark. The first side is ours; `limit_seconds` are those of one pass, by phase and part."""

    benchmark: Benchmark
    sides: tuple[Side, ...]
    layers: Layers
    limit_rows: Work
    limit_seconds: Mapping[str, Mapping[str, float]]


async def measure(
    benchmark: Benchmark, places: Places, environment: Mapping[str, str], *, rounds: int, ours_only: bool, say: Say
) -> Measured:
    """Run `rounds` counted rounds of every side. `ours_only` leaves the peer out; the limit is measured always."""
    runs = places.checkout / "runs"
    runs.mkdir(exist_ok=True)
    # Beside ordinary runs, so that rollouts are committed to the same kind of disk.
    with tempfile.TemporaryDirectory(dir=runs, prefix=f"bench-{benchmark.name}-") as temporary:
        folder = Path(temporary)
        prepared = benchmark.prepare(folder, places)
        programs = _programs(benchmark, prepared, places, environment, ours_only=ours_only)
        async with AsyncExitStack() as stack:
            workers = []
            for program, spec in programs:
                say(f"starting {program.name}")
                started = Worker.start(program, spec, folder / f"{program.name}.log")
                workers.append(await stack.enter_async_context(started))
            answers = await _rounds(workers, rounds, say)
    return _measured(benchmark, prepared, workers, answers)


async def _rounds(workers: Sequence[Worker], rounds: int, say: Say) -> dict[str, list[Answer]]:
    answers: dict[str, list[Answer]] = {worker.name: [] for worker in workers}
    for number in range(rounds + 1):
        for worker in workers:
            answer = await worker.round()
            label = f"round {number}" if number else "warm-up"
            say(f"{label}: {worker.name} {answer['seconds']:.2f} s, CPU {answer['cpu_seconds']:.2f} s")
            if number:
                answers[worker.name].append(answer)
    return answers


def _programs(
    benchmark: Benchmark, prepared: Prepared, places: Places, environment: Mapping[str, str], *, ours_only: bool
) -> list[tuple[Program, Spec]]:
    shared = environment_of(environment, places.checkout, benchmark.threads)
    own, peer = Path(sys.executable), benchmark.peer
    programs = [(Program(OURS, own, benchmark.module, places.checkout, shared), prepared.ours)]
    if not ours_only:
        python = own if peer.environment is None else places.checkout / peer.environment / "bin" / "python"
        if not python.exists():
            raise BenchError(
                f"the peer {peer.name!r} is not installed in {peer.environment}",
                remedy=f"make {peer.environment}/.ready, or leave it out with --ours-only",
                peer=peer.name,
            )
        programs.append((Program(peer.name, python, peer.module, places.checkout, shared), prepared.peer))
    limit = {
        "threads": benchmark.threads,
        "layers": {"body": prepared.layers.body, "head": [prepared.layers.head]},
        "rows": {phase: asdict(rows) for phase, rows in prepared.rows.items()},
    }
    return [*programs, (Program(LIMIT, own, "benchmarks.workers.gemm", places.checkout, shared), limit)]


def _measured(
    benchmark: Benchmark, prepared: Prepared, workers: Sequence[Worker], answers: Mapping[str, Sequence[Answer]]
) -> Measured:
    passes = [answer["phases"] for answer in answers[LIMIT]]
    seconds = {
        phase: {part: statistics.median(one[phase][part] for one in passes) for part in passes[0][phase]}
        for phase in passes[0]
    }
    pace = Pace.of(seconds, prepared.rows)
    sides = tuple(
        Side(worker.name, worker.versions, tuple(benchmark.round(answer, pace) for answer in answers[worker.name]))
        for worker in workers
        if worker.name != LIMIT
    )
    return Measured(benchmark, sides, prepared.layers, prepared.rows, seconds)
