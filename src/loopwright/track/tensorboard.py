"""Metrics as TensorBoard event files: every metric of `metrics.jsonl` as a scalar, and nothing else.

The JSON lines are the truth. Whenever a run is opened, the event file is written again from them. So steps that a
resumed run repeats are not there twice, and a run that switches TensorBoard on late still has its first steps. A
TensorBoard that is open at that time is told to forget what it has read.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from loopwright.config.extras import require
from loopwright.errors import RunError

FOLDER = "tensorboard"
"""The name of its folder in the folder of a run."""

FILE_VERSION = "brain.Event:2"


class TensorboardTracker:
    """Writes one event file in `folder`. The file begins with `records`, which `read_jsonl` returned."""

    def __init__(self, folder: Path, records: Iterable[Mapping[str, Any]]) -> None:
        require("tensorboard")
        # The name contains the time, as TensorBoard expects: it reads the files of a folder in the order of their
        # names.
        self._path = folder / f"events.out.tfevents.{time.time_ns()}"
        draft = folder / "unfinished"
        try:
            folder.mkdir(exist_ok=True)
            older = sorted(folder.glob("events.out.tfevents.*"))
            draft.write_bytes(_beginning() + b"".join(_scalars_of(record) for record in records))
            os.replace(draft, self._path)
            # Keep the last file: a TensorBoard that is reading it can continue from there to the new file.
            for path in older[:-1]:
                path.unlink()
        except OSError as error:
            raise self._cannot_write(error) from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        try:
            with self._path.open("ab") as file:
                file.write(_scalars(step, time.time(), metrics))
        except OSError as error:
            raise self._cannot_write(error) from error

    def span(self, name: str, *, step: int, **facts: Any) -> AbstractContextManager[None]:
        """Do nothing: TensorBoard cannot show spans. They are in `events.jsonl`."""
        return nullcontext()

    def _cannot_write(self, error: OSError) -> RunError:
        return RunError(
            f"{self._path} cannot be written: {error}",
            remedy="free some disk space and check the folder's permissions, or switch track.tensorboard off; "
            "then run the same command again",
        )


def _beginning() -> bytes:
    """The first record of every event file, then a restart at step 0, which makes readers drop all earlier steps."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    restart = SessionLog(status=SessionLog.START)
    return _framed(Event(wall_time=time.time(), file_version=FILE_VERSION)) + _framed(
        Event(wall_time=time.time(), step=0, session_log=restart)
    )


def _scalars_of(record: Mapping[str, Any]) -> bytes:
    """The metrics of one line of `metrics.jsonl`. A null there is a number that was not finite."""
    numbers = {name: value for name, value in record.items() if name not in ("step", "time")}
    return _scalars(record["step"], record["time"], {name: math.nan if v is None else v for name, v in numbers.items()})


def _scalars(step: int, at: float, metrics: Mapping[str, float]) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in metrics.items()]
    return _framed(Event(wall_time=at, step=step, summary=Summary(value=values)))


def _framed(event: Any) -> bytes:
    """The event as one record with its checksums."""
    from io import BytesIO

    from tensorboard.summary.writer.record_writer import RecordWriter

    file = BytesIO()
    RecordWriter(file).write(event.SerializeToString())
    return file.getvalue()
