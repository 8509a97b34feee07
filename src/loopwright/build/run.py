"""Opens a run: a new one, or the one in its folder, from its latest checkpoint.

What is opened has two halves. `build/standing.py` opens what stays until the run is closed. `build/lineage.py` opens
the learner and all that goes with it, again each time that the learner is lost (`build/lineages.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from loopwright.build.lineages import open_lineages
from loopwright.build.running import Run, RunOpening
from loopwright.build.standing import RunSettings, open_standing
from loopwright.config import Loaded
from loopwright.track.console import Console


def open_run(
    loaded: Loaded,
    *,
    cache: Path,
    stop: asyncio.Event,
    fresh: bool = False,
    allow_config_change: bool = False,
    console: Console | None = None,
    env: Mapping[str, str] | None = None,
) -> RunOpening:
    """Open the run that a config describes. Setting `stop` ends its training after a checkpoint.

    `cache` is where converted models are kept. `env` is the environment; processes that the run starts see the part of
    it that holds no secrets. The run folder is opened after the user's code and the model, so that a mistake in them
    does no harm to an earlier run in that folder.
    """
    # Absolute: a program may change its current folder while the run is open.
    path, snapshot = Path(loaded.config.trainer.run_dir).absolute(), loaded.config.model_dump(mode="json")
    settings = RunSettings(loaded, path, cache, stop, fresh, allow_config_change, console, env or {}, snapshot)
    return RunOpening(partial(_open, settings))


async def _open(settings: RunSettings) -> Run:
    async with AsyncExitStack() as stack:
        standing = await stack.enter_async_context(open_standing(settings))
        lineages = await stack.enter_async_context(open_lineages(standing))
        run = Run(standing, lineages)
        stack.push_async_callback(run.leave)
        return run.closed_by(stack.pop_all())
