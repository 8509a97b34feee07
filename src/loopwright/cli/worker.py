"""`loopwright worker`: an engine that dials a gateway's relay, and serves its agents from behind a firewall."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright.cli.event_loop import run_server, settle_down
from loopwright.cli.gateway import KEY_VARIABLE
from loopwright.cli.models import models_folder
from loopwright.cli.sampled_weights import EngineKindOption
from loopwright.cli.server_key import given_key
from loopwright.config import Dtype
from loopwright.config.addresses import address_problems
from loopwright.config.extras import require
from loopwright.engines.http.process import KEY_VARIABLE as ENGINE_KEY_VARIABLE
from loopwright.errors import ConfigError
from loopwright.types import ServerKind

if TYPE_CHECKING:
    from loopwright.build import RemoteEngine, ServedModel, WorkerPlace

MOST_LETTERS = 48


def worker(
    gateway: Annotated[str, typer.Option("--gateway", help="The URL of `loopwright gateway --relay`.")],
    engine: Annotated[
        str | None, typer.Option("--engine", help="The URL of `loopwright engine` or of another server.")
    ] = None,
    engine_kind: EngineKindOption = ServerKind.LOOPWRIGHT,
    model: Annotated[
        str | None, typer.Option("--model", help="A model to compute here; with --engine, its name, if need be.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="This worker's name, which no other one has; else one is made.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help=f"A file of mode 600 with the gateway's key; else {KEY_VARIABLE}.")
    ] = None,
    engine_key_file: Annotated[
        Path | None, typer.Option("--engine-key-file", help=f"The engine's key; else {ENGINE_KEY_VARIABLE}.")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads of torch.")] = None,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Requests that are computed at once.")] = 64,
    cache_tokens: Annotated[
        int, typer.Option("--cache-tokens", min=0, help="Tokens of earlier prompts and answers that are kept.")
    ] = 32_768,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="The model's numbers.")] = Dtype.FLOAT32,
    max_context: Annotated[int | None, typer.Option("--max-context", min=1, help="Tokens; else the model's.")] = None,
) -> None:
    """Serve a gateway's agents with an engine that only dials out, and opens no port.

    Prints one line of JSON when the gateway has taken it for the first time.
    """
    require("serve", "gateway")
    from loopwright.build import RemoteEngine, ServedModel, WorkerPlace

    for problem in address_problems(("--gateway",), gateway, "--key-file"):
        raise ConfigError(f"--gateway {problem.text}", remedy=problem.remedy)
    if (key := given_key(key_file, KEY_VARIABLE)) is None:
        raise ConfigError("the gateway's key is missing", remedy=f"give --key-file, or export {KEY_VARIABLE}")
    behind: ServedModel | RemoteEngine
    if engine is not None:
        behind = RemoteEngine(
            engine, given_key(engine_key_file, ENGINE_KEY_VARIABLE), model, models_folder(), kind=engine_kind
        )
    elif model is not None:
        behind = ServedModel(
            model,
            models_folder(),
            dtype=dtype,
            max_context=max_context,
            threads=threads,
            max_batch=max_batch,
            cache_tokens=cache_tokens,
        )
    else:
        raise ConfigError("there is nothing to serve", remedy="name an --engine or a --model")
    run_server(_serve(behind, WorkerPlace(gateway, key, name or _own_name())))


def _own_name() -> str:
    here = re.sub(r"[^A-Za-z0-9_.-]+", "-", socket.gethostname())[:MOST_LETTERS]
    return f"{here}-{secrets.token_hex(4)}"


async def _serve(behind: ServedModel | RemoteEngine, place: WorkerPlace) -> None:
    from loopwright.build import serve_worker

    was_connected = False

    def connected() -> None:
        nonlocal was_connected
        if not was_connected:
            was_connected = True
            settle_down()
            typer.echo(json.dumps({"worker": place.name, "gateway": place.url, "pid": os.getpid()}))

    serving = asyncio.ensure_future(serve_worker(behind, place, connected))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    await asyncio.wait((serving,))
    if not serving.cancelled():
        serving.result()
