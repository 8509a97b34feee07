"""Sampling without a trainer, for evaluations and for plain rollouts.

A session has a folder like that of a run, so its trajectories are stored, locked and shown the same way. Nothing is
trained: all its tokens have one version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.build.remote import RemoteEngine, connected
from loopwright.build.sampling import SamplingParts, open_local_sampling_parts, open_sampling_parts
from loopwright.build.stamped import Stamped
from loopwright.config import Loaded
from loopwright.core.redaction import Redactor
from loopwright.errors import ConfigChangedError
from loopwright.ports import Lockstep, StreamingEngine, Tracker
from loopwright.produce import RolloutRunner
from loopwright.runs.kept_weights import Weights
from loopwright.runs.run_folder import RunFolder
from loopwright.track.console import Console
from loopwright.track.fanout import Trackers
from loopwright.track.jsonl import JsonlTracker
from loopwright.track.redacting import redacting, redactor_of
from loopwright.types import ProduceKind, Rollout, TrainerKind


@dataclass(frozen=True, slots=True)
class SamplingSession:
    """A locked folder, the user's code and a running engine."""

    folder: RunFolder
    sampling: SamplingParts
    engine: StreamingEngine
    runner: RolloutRunner
    storage: SqliteStorage
    tracker: Tracker
    on_rollout: Callable[[Rollout], None] | None
    redact: Redactor


def with_weights(loaded: Loaded, weights: Weights, out: Path) -> Loaded:
    """The config for a session in `out` that samples from `weights`: without a learner, in this process alone."""
    config = loaded.config
    changes = {
        "model": config.model.model_copy(update={"path": weights.path}),
        "trainer": config.trainer.model_copy(update={"run_dir": str(out), "kind": TrainerKind.COLOCATE}),
        "produce": config.produce.model_copy(update={"kind": ProduceKind.SYNC}),
    }
    return replace(loaded, config=config.model_copy(update=changes))


@asynccontextmanager
async def open_session(
    loaded: Loaded,
    *,
    cache: Path,
    version: int,
    fresh: bool,
    console: Console | None,
    remote: RemoteEngine | None = None,
) -> AsyncIterator[SamplingSession]:
    """Open the session in `trainer.run_dir`: a new one, or the one that is there.

    Its tokens are sampled by `remote`, whatever weights that has, or else by the config's model in this process.
    """
    config, snapshot = loaded.config, loaded.config.model_dump(mode="json")
    redact = redactor_of(loaded, remote.key if remote else None)
    async with AsyncExitStack() as stack:
        stack.enter_context(redacting(redact))
        sampling, engine, lockstep, held = await _parts_and_engine(stack, loaded, cache, version, remote)
        folder = stack.enter_context(_folder(Path(config.trainer.run_dir), snapshot, fresh))
        storage = await stack.enter_async_context(SqliteStorage(folder.rollouts))
        folder.adopt(snapshot, loaded.base)
        sampling.model.tokenizer.save_pretrained(folder.tokenizer)
        jsonl = JsonlTracker(folder.path, redact)
        if console is not None:
            stack.enter_context(console)
        yield SamplingSession(
            folder,
            sampling,
            engine,
            await stack.enter_async_context(
                sampling.runner(
                    engine, lockstep, held, redact=redact, concurrency=sampling.concurrency([sampling.capacity])
                )
            ),
            storage,
            Trackers(jsonl, console) if console else jsonl,
            console.on_rollout if console else None,
            redact,
        )


async def _parts_and_engine(
    stack: AsyncExitStack, loaded: Loaded, cache: Path, version: int, remote: RemoteEngine | None
) -> tuple[SamplingParts, StreamingEngine, Lockstep | None, Callable[[], float]]:
    """The parts, the engine, and a clock of the seconds in which the engine has answered nobody: it may go away and
    come back."""
    if remote is not None:
        elsewhere, model = await stack.enter_async_context(connected(remote))
        there = await stack.enter_async_context(open_sampling_parts(loaded, model))
        return there, Stamped(elsewhere, version), None, elsewhere.held_seconds
    sampling = await stack.enter_async_context(open_local_sampling_parts(loaded, cache))
    engine = await stack.enter_async_context(sampling.embedded_engine(version))
    return sampling, engine, engine, lambda: 0.0


@contextmanager
def _folder(path: Path, snapshot: Mapping[str, Any], fresh: bool) -> Iterator[RunFolder]:
    try:
        with RunFolder.open(path, snapshot, fresh=fresh) as folder:
            yield folder
    except ConfigChangedError as error:
        remedy = "undo the changes, choose another folder with --out, or start over with --fresh"
        raise ConfigChangedError(error.message, remedy=remedy, **error.facts) from None
