"""The page of a run that is open, in a process beside it, which only reads files.

The run never waits for it, and goes on without it if it fails. The key and the port stay in the run's folder, so that a
page that is open in a browser goes on when the run is resumed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from loopwright.core.environment import child_environment
from loopwright.core.own_command import own_command
from loopwright.errors import EngineLostError
from loopwright.runs.durable import write_whole
from loopwright.runs.run_folder import RunFolder
from loopwright.serve.child import child_process
from loopwright.serve.keys import new_key, write_key
from loopwright.ui.server import page_url

log = logging.getLogger("loopwright")

READY_SECONDS = 120.0
"""Its interpreter has to start; on a busy machine that may take long, and nobody waits for it."""
GRACE_SECONDS = 3.0


@asynccontextmanager
async def page_beside(
    folder: RunFolder, port: int, env: Mapping[str, str], ready: Callable[[str], None]
) -> AsyncIterator[None]:
    """Keep the page open while the block runs. `ready` gets its URL. `port` 0 is that of the last time, or a free
    one."""
    if not folder.ui_key.exists():
        write_key(folder.ui_key, new_key())
    keeper = asyncio.create_task(_keep(folder, port or last_port(folder), env, ready), name="page")
    try:
        yield
    finally:
        keeper.cancel()
        with suppress(asyncio.CancelledError):
            await keeper


def last_port(folder: RunFolder) -> int:
    try:
        port = json.loads(folder.ui.read_text("ascii"))["port"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return port if isinstance(port, int) and 0 < port < 1 << 16 else 0


async def _keep(folder: RunFolder, port: int, env: Mapping[str, str], ready: Callable[[str], None]) -> None:
    command = own_command("loopwright.ui", str(folder.path), str(port))
    try:
        async with child_process(
            command,
            env=child_environment(env),
            log=folder.ui_log,
            ready_seconds=READY_SECONDS,
            grace_seconds=GRACE_SECONDS,
        ) as child:
            url = page_url("127.0.0.1", child.ready["port"])
            write_whole(folder.ui, json.dumps({"url": url, "port": child.ready["port"]}) + "\n")
            ready(url)
            words = await child.wait()
    except (EngineLostError, OSError) as error:
        words = str(error)
    log.warning("the page of this run is gone: %s. The run goes on; `loopwright ui %s` shows it", words, folder.path)
