"""`loopwright ui`: the web page of a run, or of a folder of runs."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from loopwright.cli.event_loop import run_async
from loopwright.cli.server_key import own_key
from loopwright.cli.state import file_name, state_folder
from loopwright.config.extras import require

KEY_VARIABLE = "LOOPWRIGHT_UI_KEY"


def ui(
    place: Annotated[Path, typer.Argument(metavar="RUN|FOLDER", help="A run, or a folder with runs directly in it.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 is any free one.")] = 0,
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A host name that browsers use, if it is not the --host.")
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", help=f"A file of mode 600 with the key; else {KEY_VARIABLE}; else one is made."),
    ] = None,
) -> None:
    """Show runs in the browser: curves, steps, trajectories, tokens, time and health. It only reads, also beside a run.

    Prints the link that opens the page. The key is in the link only if a person reads it on a terminal.
    """
    require("ui", "ui")
    key, made = own_key(key_file, KEY_VARIABLE, kept_key(place))
    told = made or key_file
    run_async(_serve(place, key, told, host, port, tuple(name or ())))


def kept_key(place: Path) -> Path:
    """Where the key of this place is kept. It has an ending, because `own_key` replaces one: places whose names differ
    behind a dot would have one key."""
    return state_folder("ui") / f"{file_name(str(place.absolute()))}.key"


async def _serve(place: Path, key: str, key_file: Path | None, host: str, port: int, names: tuple[str, ...]) -> None:
    from loopwright.ui.server import open_page, page_url

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_page(place, key=key, host=host, port=port, names=names) as bound:
        typer.echo(opening(page_url(host, bound), key, key_file, to_a_person=sys.stdout.isatty()))
        await stop.wait()


def opening(url: str, key: str, key_file: Path | None, *, to_a_person: bool) -> str:
    """What the command prints: the link with the key, or where the key is."""
    if to_a_person:
        return f"{url}#key={key}"
    return f"{url}  (the key is in {key_file or f'the variable {KEY_VARIABLE}'})"
