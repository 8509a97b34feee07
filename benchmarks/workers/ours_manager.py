"""The CPU time of making and training groups, with so many rollouts in flight, in virtual time."""

from __future__ import annotations

import gc
import time

from benchmarks.workers.port import Port

SAMPLES = 8


def main(port: Port) -> None:
    # What the collector would scan is mostly what the storage in memory keeps, and a run keeps on disk.
    gc.disable()
    spec = port.spec
    port.ready("loopwright")
    for watch in port.rounds():
        cases = [_cpu_seconds(in_flight, spec["groups"]) for in_flight in spec["in_flight"]]
        port.answer(watch.stop(), cases=cases)


def _cpu_seconds(in_flight: int, groups: int) -> float:
    from benchmarks.production import Line, Plant
    from loopwright.testing import run_virtually
    from loopwright.types import ProduceKind

    # A step takes as many groups as are in flight: the next ones fill the slots while it is trained.
    plant = Plant(groups=in_flight // SAMPLES, samples=SAMPLES, slots=in_flight, tokens=1)
    steps = groups // plant.groups

    async def train() -> None:
        await Line(plant, staleness=4, kind=ProduceKind.ASYNC, steps=steps).train_beside(steps, 0.0)

    started = time.process_time()
    run_virtually(train())
    return time.process_time() - started


if __name__ == "__main__":
    main(Port())
