"""The follower's process: an entry point of its own, started by `track/followers.py`.

It is ready at once: the service's package, whose import takes seconds, comes afterwards. SIGTERM, and the end of its
standard input when its parent has died, let it send what is left and end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Protocol

from loopwright.track.follower.growing import GrowingLines
from loopwright.track.follower.settings import VARIABLE, FollowerSettings, Service
from loopwright.track.jsonl import METRICS

LOOK_SECONDS = 1.0


class ServiceRun(Protocol):
    """One run at the service."""

    def log(self, step: int, time: float, metrics: dict[str, float]) -> None: ...

    def finish(self) -> None: ...


def follow() -> None:
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    threading.Thread(target=_watch_parent, args=(ending,), daemon=True).start()
    print('{"ready": true}', flush=True)
    # Packages of services print on standard output, which nobody reads.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    settings = FollowerSettings.from_text(os.environ.pop(VARIABLE))
    lines, run = GrowingLines(Path(settings.folder) / METRICS), _begun(settings)
    while True:
        # Looked at first: what is written before the end is sent.
        is_last = ending.wait(LOOK_SECONDS)
        for record in lines.new():
            run.log(record.pop("step"), record.pop("time"), _numbers(record))
        if is_last:
            break
    run.finish()


def _begun(settings: FollowerSettings) -> ServiceRun:
    match settings.service:
        case Service.WANDB:
            from loopwright.track.follower.wandb_run import WandbRun

            return WandbRun(settings)
        case Service.MLFLOW:
            from loopwright.track.follower.mlflow_run import MlflowRun

            return MlflowRun(settings)


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    """A null was no finite number. Services have no place for it."""
    return {name: float(value) for name, value in record.items() if value is not None}


def _watch_parent(ending: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    ending.set()


if __name__ == "__main__":
    follow()
