"""Two steps of a run in each round: one alone, and one beside a process that does nothing but count."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.workers.port import Port, Stopwatch

COUNTING = "while True: pass"


async def main(port: Port) -> None:
    from loopwright.models.openmp import wait_without_spinning

    if not port.spec["spins"]:
        wait_without_spinning(os.environ)

    from loopwright.build import open_run
    from loopwright.config import load
    from loopwright.trainers.colocate import ColocateTrainer

    loaded = load(Path(port.spec["config"]), files=True)
    async with open_run(loaded, cache=Path(port.spec["cache"]), stop=asyncio.Event()) as run:
        if not isinstance(run.trainer, ColocateTrainer):
            raise TypeError("only a colocated run can be driven step by step")
        port.ready("loopwright", "torch", "transformers")
        for watch in port.rounds():
            quiet = Stopwatch()
            await run.trainer.advance()
            alone = quiet.stop()
            with _busy_process():
                disturbed = Stopwatch()
                await run.trainer.advance()
                beside = disturbed.stop()
            port.answer(
                watch.stop(),
                quiet_seconds=alone["seconds"],
                quiet_cpu_seconds=alone["cpu_seconds"],
                busy_seconds=beside["seconds"],
            )


@contextmanager
def _busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", COUNTING])
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    asyncio.run(main(Port()))
