"""The process of a rank: takes the driver's calls from one pipe, and answers through another.

It ends when the driver's pipe closes, in whatever way the driver ended. While it works it beats, also in a long
collective, so that the driver can tell a stopped process from a busy one.
"""

from __future__ import annotations

import os
import queue
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import save_file

from loopwright.errors import LoopwrightError, RemoteError, WeightsError
from loopwright.learn.ranks.meeting import is_of_others, own_fault
from loopwright.learn.ranks.messages import (
    RankBeat,
    RankCall,
    RankDone,
    RankFailed,
    RankPlace,
    RankWork,
    WeightOffer,
    WeightsTaken,
)
from loopwright.learn.ranks.rank import RankLearner
from loopwright.serve.frames import frame, read_frame
from loopwright.types import TensorSpec

BEATS = 10.0
"""So often a rank beats within the silence that is allowed."""
MOST_SECONDS = 1.0
"""How far beats are apart, at most."""

Open = Callable[[RankPlace, Callable[[], None], ExitStack], RankLearner]
"""Meets the other ranks and loads the model. What it opens is closed by the stack."""


class DriverPipe:
    """The two pipes to the driver."""

    def __init__(self, calls: BinaryIO, answers: BinaryIO) -> None:
        self._calls = calls
        self._answers = answers
        self._lock = threading.Lock()
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done = 0

    def start(self) -> None:
        threading.Thread(target=self._read, name="loopwright-calls", daemon=True).start()

    def beat_every(self, seconds: float) -> None:
        threading.Thread(target=self._beat, args=(seconds,), name="loopwright-beat", daemon=True).start()

    def receive(self) -> Any:
        return self._received.get()

    def send(self, value: object) -> None:
        data = frame(value)
        with self._lock:
            self._answers.write(data)
            self._answers.flush()

    def progressed(self) -> None:
        """A piece of work is done. The next beat says so."""
        self._done += 1

    def _read(self) -> None:
        try:
            while True:
                self._received.put(read_frame(self._calls))
        except (EOFError, OSError):
            # The driver is gone. Whatever this rank is in, nobody waits for it.
            os._exit(0)

    def _beat(self, seconds: float) -> None:
        pause = threading.Event()
        while not pause.wait(seconds):
            self.send(RankBeat(self._done))


class OfferingSink:
    """A WeightSink that hands buckets to the driver, as files in `folder`, one at a time."""

    def __init__(self, pipe: DriverPipe, folder: Path) -> None:
        self._pipe = pipe
        self._file = folder / "bucket.safetensors"

    def begin(self, tensors: Mapping[str, TensorSpec]) -> None:
        self._offer(WeightOffer(tensors=tensors))

    def take(self, bucket: Mapping[str, Any]) -> None:
        try:
            save_file({name: tensor.contiguous() for name, tensor in bucket.items()}, self._file)
        except (OSError, SafetensorError) as error:
            raise WeightsError(
                f"the weights could not be handed over in {self._file}: {error}",
                remedy=f"free some space in {self._file.parent.parent}; the same command goes on from the last "
                "checkpoint",
            ) from error
        self._offer(WeightOffer(bucket=self._file, names=tuple(bucket)))

    def _offer(self, offer: WeightOffer) -> None:
        self._pipe.progressed()
        self._pipe.send(offer)
        answer = self._pipe.receive()
        if not isinstance(answer, WeightsTaken):
            raise RuntimeError(f"the driver answered {answer!r:.80} to weights")


def serve_rank(pipe: DriverPipe, open_rank: Open) -> None:
    """Do what the driver asks for, until its pipe closes or something fails."""
    pipe.start()
    with ExitStack() as stack:
        place: RankPlace = pipe.receive()
        pipe.beat_every(min(MOST_SECONDS, place.silence_seconds / BEATS))
        with _told(pipe, place) as answer:
            rank = open_rank(place, pipe.progressed, stack)
            answer(rank.describes)
        while True:
            call: RankCall = pipe.receive()
            with _told(pipe, place) as answer:
                answer(_do(rank, call, pipe, place))
            pipe.progressed()


def _do(rank: RankLearner, call: RankCall, pipe: DriverPipe, place: RankPlace) -> Any:
    match call.work:
        case RankWork.STEP:
            return rank.step(*call.args)
        case RankWork.LOGPROBS:
            return rank.logprobs(*call.args)
        case RankWork.SAVE:
            return rank.save(*call.args)
        case RankWork.LOAD:
            return rank.load(*call.args)
        case RankWork.EXPORT:
            return rank.export(*call.args)
        case RankWork.PUBLISH:
            return rank.publish(OfferingSink(pipe, place.folder))


@contextmanager
def _told(pipe: DriverPipe, place: RankPlace) -> Iterator[Callable[[Any], None]]:
    """The driver hears how a call has ended. After an error this rank does nothing more: the others may be within a
    collective that it has left, so the driver ends them all."""
    try:
        yield lambda value: pipe.send(RankDone(value))
    except LoopwrightError as error:
        pipe.send(RankFailed(str(error), error))
        raise
    # A KeyboardInterrupt comes from outside of this process, so it counts as a loss.
    except (Exception, SystemExit) as error:
        words = "".join(traceback.format_exception_only(error)).strip()
        told = None if is_of_others(error) else own_fault(error) or _raised(place.rank, words, error)
        pipe.send(RankFailed(words, told))
        raise


def _raised(rank: int, words: str, error: BaseException) -> RemoteError:
    """What nobody has foreseen. Another try would most likely meet the same."""
    return RemoteError(
        f"rank {rank} of the learner raised {words}",
        remedy="its log has the traceback; mend the cause, and the same command goes on from the last checkpoint; if "
        "Loopwright is the cause, please report it",
        trace="".join(traceback.format_exception(error)),
    )
