"""`loopwright agent-server`: runs the programs of trainings near their sandboxes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright.cli.event_loop import run_async
from loopwright.cli.server_key import own_key
from loopwright.cli.state import state_folder
from loopwright.config.extras import require

if TYPE_CHECKING:
    from loopwright.agent_server.server import ServerPlace
    from loopwright.agent_server.trials import ServerLimits

KEY_VARIABLE = "LOOPWRIGHT_AGENT_SERVER_KEY"
QUEUE_PER_SLOT = 4


def agent_server(
    slots: Annotated[int, typer.Option("--slots", min=1, help="Trials that run at once.")] = 4,
    queue: Annotated[
        int | None, typer.Option("--queue", min=0, help="Trials that wait beside them; else 4 for each slot.")
    ] = None,
    base: Annotated[
        Path, typer.Option("--base", help="The folder that {config} and relative paths of runners mean here.")
    ] = Path(),
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 is any free one.")] = 0,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A host name that clients use, if it is not the --host.")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", help="Where results outlive the process; else a file per port in your state folder."),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", help=f"A file of mode 600 with the key; else {KEY_VARIABLE}; else one is made."),
    ] = None,
    abandoned_after: Annotated[
        float, typer.Option("--abandoned-after", min=1, help="Seconds without a question after which a trial is ended.")
    ] = 120.0,
    keep_hours: Annotated[float, typer.Option("--keep-hours", min=0, help="How long results are kept.")] = 168.0,
) -> None:
    """Run trials of programs for training runs whose `agent.runner` has `kind: server`.

    Whoever has its key can run any command here. Prints one line of JSON with its URL when it is ready.
    """
    require("serve", "agent-server")
    from loopwright.agent_server.server import ServerPlace
    from loopwright.agent_server.trials import ServerLimits

    place = ServerPlace(base, store or state_folder("agent-server") / f"{port}.sqlite")
    key, made = own_key(key_file, KEY_VARIABLE, place.store)
    waiting = QUEUE_PER_SLOT * slots if queue is None else queue
    limits = ServerLimits(slots, waiting, abandoned_after, keep_hours * 3600)
    run_async(_serve(place, limits, key, made, host, port, tuple(name or ())))


async def _serve(
    place: ServerPlace,
    limits: ServerLimits,
    key: str,
    key_file: Path | None,
    host: str,
    port: int,
    names: tuple[str, ...],
) -> None:
    from loopwright.agent_server.server import open_agent_server

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    opening = open_agent_server(place, limits, os.environ, key=key, host=host, port=port, names=names)
    async with opening as (_, bound):
        shown = f"[{host}]" if ":" in host else host
        where = {"url": f"http://{shown}:{bound}", "port": bound, "pid": os.getpid(), "store": str(place.store)}
        typer.echo(json.dumps(where | ({"key_file": str(key_file)} if key_file else {})))
        await stop.wait()
