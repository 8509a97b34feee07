"""Running a benchmark: every side in a process of its own, round by round in turn.

    ours, peer, limit -> ours, peer, limit -> ...

The first round of each warms up and does not count, unless the time that it measures is virtual. A slow moment of the
machine meets all sides, not one. Sides that do not fit into memory together are started for each round anew, and its
length makes up for the missing warm-up.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Round
from benchmarks.process import Program, Worker, environment_of
from benchmarks.setting import Benchmark, Limit, Peer, Places, Prepared, Spec
from loopwright.errors import BenchError

OURS = "loopwright"
LIMIT = "limit"

Say = Callable[[str], None]
"""Tells a waiting person what has happened."""

Answer = dict[str, Any]

Programs = Sequence[tuple[Program, Spec]]


@dataclass(slots=True)
class Answers:
    """What one process has said so far."""

    versions: Mapping[str, str] = field(default_factory=dict)
    rounds: list[Answer] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Side:
    """What one side did: figures per round, in order."""

    name: str
    versions: Mapping[str, str]
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished benchmark. The first side is ours."""

    benchmark: Benchmark
    sides: tuple[Side, ...]
    limit: Limit | None


async def measure(
    benchmark: Benchmark, places: Places, environment: Mapping[str, str], *, rounds: int, ours_only: bool, say: Say
) -> Measured:
    """Run `rounds` counted rounds of every side. `ours_only` leaves the peer out, but not the limit."""
    runs = places.checkout / "runs"
    runs.mkdir(exist_ok=True)
    # Beside ordinary runs, so that rollouts are committed to the same kind of disk.
    with tempfile.TemporaryDirectory(dir=runs, prefix=f"bench-{benchmark.name}-") as temporary:
        folder = Path(temporary)
        prepared = benchmark.prepare(folder, places)
        programs = _programs(benchmark, prepared, places, environment, ours_only=ours_only)
        answers: dict[str, Answers] = {program.name: Answers() for program, _ in programs}
        if benchmark.alone:
            for number in range(1, rounds + 1):
                again = folder / f"round-{number}"
                again.mkdir()
                anew = benchmark.prepare(again, places)
                programs = _programs(benchmark, anew, places, environment, ours_only=ours_only)
                await _one_by_one(programs, again, number, answers, say)
        else:
            await _side_by_side(programs, folder, range(int(not benchmark.warms_up), rounds + 1), answers, say)
    return _measured(benchmark, prepared, answers)


async def _side_by_side(
    programs: Programs, folder: Path, rounds: range, answers: Mapping[str, Answers], say: Say
) -> None:
    """Round 0 warms up."""
    async with AsyncExitStack() as stack:
        workers = []
        for program, spec in programs:
            say(f"starting {program.name}")
            started = Worker.start(program, spec, folder / f"{program.name}.log")
            workers.append(await stack.enter_async_context(started))
            answers[program.name].versions = workers[-1].versions
        for number in rounds:
            for worker in workers:
                answer = await worker.round()
                _tell(f"round {number}" if number else "warm-up", worker.name, answer, say)
                if number:
                    answers[worker.name].rounds.append(answer)


async def _one_by_one(programs: Programs, folder: Path, number: int, answers: Mapping[str, Answers], say: Say) -> None:
    for program, spec in programs:
        async with Worker.start(program, spec, folder / f"{program.name}.log") as worker:
            answer = await worker.round()
        _tell(f"round {number}", program.name, answer, say)
        answers[program.name].versions = worker.versions
        answers[program.name].rounds.append(answer)


def _tell(label: str, name: str, answer: Answer, say: Say) -> None:
    say(f"{label}: {name} {answer['seconds']:.2f} s, CPU {answer['cpu_seconds']:.2f} s")


def _programs(
    benchmark: Benchmark, prepared: Prepared, places: Places, environment: Mapping[str, str], *, ours_only: bool
) -> list[tuple[Program, Spec]]:
    shared = environment_of(environment, places.checkout, benchmark.threads)
    own = Path(sys.executable)
    programs = [(Program(OURS, own, benchmark.module, places.checkout, shared), prepared.ours)]
    peers = () if benchmark.peer is None else ((benchmark.peer, prepared.peer),)
    for peer, spec in () if ours_only else (*peers, *prepared.others):
        programs.append((Program(peer.name, _python_of(peer, places), peer.module, places.checkout, shared), spec))
    if (limit := prepared.limit) is not None:
        programs.append((Program(LIMIT, own, limit.module, places.checkout, shared), limit.spec))
    return programs


def _python_of(peer: Peer, places: Places) -> Path:
    """The Python that runs the peer. Raises BenchError if the peer is not installed."""
    if peer.environment is None:
        return Path(sys.executable)
    python = places.checkout / peer.environment / "bin" / "python"
    if not python.exists():
        raise BenchError(
            f"the peer {peer.name!r} is not installed in {peer.environment}",
            remedy=f"make {peer.environment}/.ready, or leave it out with --ours-only",
            peer=peer.name,
        )
    return python


def _measured(benchmark: Benchmark, prepared: Prepared, answers: Mapping[str, Answers]) -> Measured:
    limit = prepared.limit.measured(answers[LIMIT].rounds) if prepared.limit else None
    pace = limit.pace if limit else None
    sides = tuple(
        Side(name, said.versions, tuple(benchmark.round(answer, pace) for answer in said.rounds))
        for name, said in answers.items()
        if name != LIMIT
    )
    return Measured(benchmark, sides, limit)
