"""How a worker introduces itself: its name, and the model that it serves. A run has no model in its hello, because its
registration brings one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

from loopwright.errors import LoopwrightError, RefusedError
from loopwright.gateway.relay.frames import FrameType, RelayFrame, frame_of_words, protocol_broken

WORKER = re.compile(r"[A-Za-z0-9_.-]{1,64}")
DIGEST = re.compile(r"[0-9a-f]{64}")
LONGEST_SOURCE = 4096
HELD_BY_A_RUN = 409
PASSING = frozenset({408, HELD_BY_A_RUN, 429})
"""The refusals that may be gone the next time. So may all statuses from 500 on."""


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """A model that workers serve. `source` is a folder or a name. `version` is that of its weights now. `digest` tells
    the files that it was loaded from, if the worker has loaded it from a folder."""

    source: str
    max_context: int
    version: int = 0
    digest: str | None = None

    @property
    def name(self) -> str:
        """Folders differ from machine to machine, so only the last part of the source belongs to the name."""
        return PurePath(self.source).name or "model"

    def is_same(self, other: WorkerModel) -> bool:
        """As far as both tell: many folders are called `export`, and not every worker has read the files."""
        digests = {self.digest, other.digest} - {None}
        return (self.name, self.max_context) == (other.name, other.max_context) and len(digests) < 2


@dataclass(frozen=True, slots=True)
class Hello:
    """`worker` is the worker's name on its gateway. Connections with the same name replace each other."""

    worker: str
    model: WorkerModel | None = None

    def frame(self) -> RelayFrame:
        model = None if self.model is None else asdict(self.model)
        return frame_of_words(FrameType.HELLO, {"worker": self.worker, "model": model})


def hello_of(frame: RelayFrame) -> Hello:
    if frame.type is not FrameType.HELLO:
        raise protocol_broken(f"it began with {frame.type.name}, and not with HELLO")
    said = frame.words
    worker, model = said.get("worker"), said.get("model")
    if not isinstance(worker, str) or WORKER.fullmatch(worker) is None:
        raise RefusedError(
            f"{str(worker)[:80]!r} is no name for a worker",
            remedy="use at most 64 letters, digits, dots, hyphens and underscores",
            status=400,
        )
    return Hello(worker, None if model is None else _model(model))


def _model(said: Any) -> WorkerModel:
    match said:
        case {"source": str(source), "max_context": int(context), "version": int(version)} if (
            0 < len(source) <= LONGEST_SOURCE
            and source.isprintable()
            and context > 0
            and version >= 0
            and _is_digest(digest := said.get("digest"))
        ):
            return WorkerModel(source, context, version, digest)
    raise protocol_broken(f"HELLO describes no model: {str(said)[:200]}")


def _is_digest(said: Any) -> bool:
    return said is None or (isinstance(said, str) and DIGEST.fullmatch(said) is not None)


def refusal_frame(error: LoopwrightError) -> RelayFrame:
    # Whatever is no refusal may pass: a tokenizer is not found while a hub is away.
    status = error.facts.get("status", 400) if isinstance(error, RefusedError) else 503
    said = {"message": error.message, "remedy": error.remedy, "status": status}
    return frame_of_words(FrameType.REFUSED, said)


def refusal_of(said: Mapping[str, Any]) -> RefusedError:
    """The refusal in a REFUSED frame."""
    status = said.get("status")
    return RefusedError(
        str(said.get("message", "")),
        remedy=str(said.get("remedy", "see the gateway's own log")),
        status=status if isinstance(status, int) else 400,
    )


def may_pass(refusal: RefusedError) -> bool:
    """Whether the worker may be accepted another time."""
    status = refusal.facts["status"]
    return status in PASSING or status >= 500
