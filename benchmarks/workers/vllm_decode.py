"""A vLLM server on the same cores, asked as a run asks it: every answer is a request of its own, streamed.

It is not vLLM at its best: its build for CPUs, eager, over HTTP. `make .peers/vllm/.ready` installs it.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.workers.port import Port, Stopwatch
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.vllm.process import VllmServer, cores_of, vllm_process
from loopwright.ports import StreamingEngine
from loopwright.types import GenerateRequest, Sampling


async def main(port: Port) -> None:
    spec, folder = port.spec, Path(port.spec["folder"])
    server = VllmServer(
        executable=spec["executable"],
        model=spec["model"],
        dtype="float32",
        max_context=1024,
        max_batch=64,
        args=("--enforce-eager",),
        env={"VLLM_CPU_KVCACHE_SPACE": "1"},
        cores=cores_of(0, 1, sorted(os.sched_getaffinity(0))[: spec["threads"]]),
        log=folder / "vllm-server.log",
        state=folder / "vllm-server.json",
        start_seconds=600.0,
    )
    async with vllm_process(server, VersionLabels("bench", 0), env=os.environ) as worker:
        port.ready("loopwright")
        while (watch := await asyncio.to_thread(port.next_round)) is not None:
            before = _cpu_of_descendants()
            await _generate(worker.engine, spec, spec["new_tokens"])
            taken = watch.stop()
            taken["cpu_seconds"] += _cpu_of_descendants() - before
            first = Stopwatch()
            await _generate(worker.engine, spec, 1)
            port.answer(taken, first_token_seconds=first.stop()["seconds"])


async def _generate(engine: StreamingEngine, spec: dict[str, Any], new_tokens: int) -> None:
    sampling = Sampling(max_new_tokens=new_tokens)
    requests = [
        GenerateRequest(f"{number}/{sample}", tuple(prompt), sampling)
        for number, prompt in enumerate(spec["prompts"])
        for sample in range(spec["samples"])
    ]
    for answer in await asyncio.gather(*map(engine.generate, requests)):
        if len(answer.ids) != new_tokens:
            raise RuntimeError("an answer ended early: all sides must sample the same number of tokens")


def _cpu_of_descendants() -> float:
    """The CPU seconds so far of the server's processes, which still run and so do not count as ours yet."""
    parents, ticks = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)], ticks[int(folder.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid] for pid in ours - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    asyncio.run(main(Port()))
