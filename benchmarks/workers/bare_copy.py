"""The limit of weight updates: a copy of as many bytes by one thread, into memory that the process has and into fresh
pages. By torch, whose memory is that of weights: numpy asks for huge pages, which take 0.07 s or 2 s as it happens."""

from __future__ import annotations

import time

import torch

from benchmarks.workers.port import Port


def main(port: Port) -> None:
    torch.set_num_threads(1)
    source = torch.ones(port.spec["bytes"], dtype=torch.uint8)
    target = torch.ones_like(source)
    port.ready("torch")
    for watch in port.rounds():
        begun = time.perf_counter()
        target.copy_(source)
        warm = time.perf_counter() - begun
        begun = time.perf_counter()
        new = source.clone()
        fresh = time.perf_counter() - begun
        taken = watch.stop()
        del new
        port.answer(taken, warm=warm, fresh=fresh)


if __name__ == "__main__":
    main(Port())
