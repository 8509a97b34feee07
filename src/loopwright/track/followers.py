"""W&B and MLflow beside `metrics.jsonl`: each in a process that follows the file, and that the run never waits for.

A follower that fails is reported once, in the log, and the run goes on. At the end of a run each has GRACE_SECONDS to
send what is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from loopwright.core.environment import child_environment
from loopwright.core.own_command import own_command
from loopwright.errors import EngineLostError
from loopwright.serve.child import child_process
from loopwright.track.follower.settings import VARIABLE, FollowerSettings

log = logging.getLogger("loopwright")

GRACE_SECONDS = 60.0
"""The import of such a package alone takes up to ten seconds."""
READY_SECONDS = 120.0
"""Its interpreter has to start; on a busy machine that may take long, and nobody waits for it."""
QUIET = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
"""The packages tell their makers how they are used, unless they are asked not to."""


@asynccontextmanager
async def following(
    followers: Sequence[tuple[FollowerSettings, Mapping[str, str]]], env: Mapping[str, str], log_file: Path
) -> AsyncIterator[None]:
    """Keep these followers running while the block runs. Each has the harmless part of `env`, and variables of its
    own."""
    closing = asyncio.Event()
    environments = [{**child_environment(env), **QUIET, **own} for _, own in followers]
    keepers = [
        asyncio.create_task(_keep(settings, variables, log_file, closing), name=settings.service)
        for (settings, _), variables in zip(followers, environments, strict=True)
    ]
    try:
        yield
    finally:
        closing.set()
        if keepers:
            # One that is still starting is waited for: it has the metrics of a short run to send.
            _, late = await asyncio.wait(keepers, timeout=GRACE_SECONDS)
            for keeper in late:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)


async def _keep(settings: FollowerSettings, env: Mapping[str, str], log_file: Path, closing: asyncio.Event) -> None:
    command = own_command("loopwright.track.follower")
    variables = {**env, VARIABLE: settings.as_text()}
    try:
        async with child_process(
            command, env=variables, log=log_file, ready_seconds=READY_SECONDS, grace_seconds=GRACE_SECONDS
        ) as child:
            ended, asked = asyncio.create_task(child.wait()), asyncio.create_task(closing.wait())
            try:
                await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    return
                words = ended.result()
            finally:
                ended.cancel()
                asked.cancel()
    except (EngineLostError, OSError) as error:
        words = str(error)
    log.warning("metrics no longer go to %s: %s. The run goes on; metrics.jsonl has them all", settings.service, words)
