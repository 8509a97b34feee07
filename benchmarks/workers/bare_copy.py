"""The limit of weight updates: a copy of as many bytes, into memory that the process has and into fresh pages."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.workers.port import Port


def main(port: Port) -> None:
    source = np.ones(port.spec["bytes"], dtype=np.uint8)
    target = np.ones_like(source)
    port.ready("numpy")
    for watch in port.rounds():
        begun = time.perf_counter()
        np.copyto(target, source)
        warm = time.perf_counter() - begun
        begun = time.perf_counter()
        new = source.copy()
        fresh = time.perf_counter() - begun
        taken = watch.stop()
        del new
        port.answer(taken, warm=warm, fresh=fresh)


if __name__ == "__main__":
    main(Port())
