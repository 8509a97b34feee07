"""`loopwright gateway`: the server that agents talk to, without a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright.cli.event_loop import run_server, settle_down
from loopwright.cli.models import models_folder
from loopwright.cli.sampled_weights import EngineKindOption
from loopwright.cli.server_key import given_key, own_key
from loopwright.cli.state import file_name, state_folder
from loopwright.config import Dtype
from loopwright.config.extras import require
from loopwright.engines.http.process import KEY_VARIABLE as ENGINE_KEY_VARIABLE
from loopwright.engines.restartable import WAIT_SECONDS
from loopwright.errors import ConfigError
from loopwright.types import ServerKind, Thinking

if TYPE_CHECKING:
    from loopwright.build import ForRuns, Relayed, RemoteEngine, ServedModel
    from loopwright.gateway.server import Address

KEY_VARIABLE = "LOOPWRIGHT_GATEWAY_KEY"


def gateway(
    engine: Annotated[
        str | None, typer.Option("--engine", help="The URL of `loopwright engine` or of a vLLM server.")
    ] = None,
    engine_kind: EngineKindOption = ServerKind.LOOPWRIGHT,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="A model to serve here; with --engine or --relay, the name of that model, if need be."
        ),
    ] = None,
    for_runs: Annotated[
        bool,
        typer.Option("--for-runs", help="Wait for training runs whose gateway.url leads here: they bring the model."),
    ] = False,
    relay: Annotated[
        bool,
        typer.Option("--relay", help="Wait for workers that dial in: `loopwright worker`, or runs with gateway.relay."),
    ] = False,
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 is any free one.")] = 0,
    advertise_url: Annotated[
        str | None, typer.Option("--advertise-url", help="What agents reach this gateway by, if not by host and port.")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", help="Where sessions outlive the process; else a file per model in your state folder."),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", help=f"A file of mode 600 with the key; else {KEY_VARIABLE}; else one is made."),
    ] = None,
    engine_key_file: Annotated[
        Path | None, typer.Option("--engine-key-file", help=f"The engine's key; else {ENGINE_KEY_VARIABLE}.")
    ] = None,
    engine_wait: Annotated[
        float,
        typer.Option(
            "--engine-wait", min=0, help="Seconds that a call waits for an engine, worker or run that is away."
        ),
    ] = WAIT_SECONDS,
    renderer: Annotated[
        str, typer.Option("--renderer", help="As model.renderer: auto, template or a family.")
    ] = "auto",
    thinking: Annotated[Thinking, typer.Option("--thinking", help="As gateway.thinking.")] = Thinking.KEEP,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads of torch.")] = None,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Requests that are computed at once.")] = 64,
    cache_tokens: Annotated[
        int, typer.Option("--cache-tokens", min=0, help="Tokens of earlier prompts and answers that are kept.")
    ] = 32_768,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="The model's numbers.")] = Dtype.FLOAT32,
    max_context: Annotated[int | None, typer.Option("--max-context", min=1, help="Tokens; else the model's.")] = None,
) -> None:
    """Serve agents in the dialects of OpenAI and Anthropic, and record every token.

    Prints one line of JSON with its URL when it is ready.
    """
    require("serve", "gateway")
    from loopwright.build import ForRuns, Relayed, RemoteEngine, ServedModel
    from loopwright.gateway.server import Address

    address = Address(host, port, advertise_url)
    behind: ServedModel | RemoteEngine | ForRuns | Relayed
    if relay:
        if engine is not None:
            raise ConfigError(
                "the workers of a relay bring the engines", remedy="remove --engine, or give it to `loopwright worker`"
            )
        behind = Relayed(models_folder(), model, engine_wait)
    elif for_runs:
        if engine is not None or model is not None:
            raise ConfigError("--for-runs has no model of its own", remedy="remove --engine and --model, or --for-runs")
        behind = ForRuns(engine_wait)
    elif engine is not None:
        behind = RemoteEngine(
            engine, given_key(engine_key_file, ENGINE_KEY_VARIABLE), model, models_folder(), engine_wait, engine_kind
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
        raise ConfigError(
            "there is nothing to serve", remedy="name an --engine or a --model, or add --for-runs or --relay"
        )
    store = store or _own_store(engine, model, "relay" if relay else "for-runs")
    key, made = own_key(key_file, KEY_VARIABLE, store)
    run_server(_serve(behind, address, store, key, made, renderer, thinking))


def _own_store(engine: str | None, model: str | None, otherwise: str) -> Path:
    """The default store: one file per model or engine, because sessions are of no use to another one. A gateway whose
    model comes later has one for all of them."""
    served = engine or model or otherwise
    if engine is None and model is not None and Path(served).exists():
        served = str(Path(served).resolve())
    return state_folder("gateway") / f"{file_name(served)}.sqlite"


async def _serve(
    behind: ServedModel | RemoteEngine | ForRuns | Relayed,
    address: Address,
    store: Path,
    key: str,
    key_file: Path | None,
    renderer: str,
    thinking: Thinking,
) -> None:
    from loopwright.build import serve_gateway

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve_gateway(behind, address, store=store, key=key, renderer=renderer, thinking=thinking) as opened:
        settle_down()
        where = {"url": opened.base_url, "port": opened.port, "pid": os.getpid(), "store": str(store)}
        typer.echo(json.dumps(where | ({"key_file": str(key_file)} if key_file else {})))
        await stop.wait()
