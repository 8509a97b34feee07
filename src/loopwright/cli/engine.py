"""`loopwright engine`: serve a model over HTTP, with vLLM's routes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopwright.cli.models import models_folder
from loopwright.config import Dtype
from loopwright.config.base import known_device
from loopwright.config.extras import require
from loopwright.engines.http.process import KEY_VARIABLE
from loopwright.serve.keys import check_key, read_key
from loopwright.serve.parent import die_with_parent

if TYPE_CHECKING:
    from loopwright.build import ServedModel


def engine(
    model: Annotated[str, typer.Option("--model", help="A folder, a Hugging Face name, or smollm2.")],
    host: Annotated[str, typer.Option("--host", help="Any but loopback needs a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 is any free one.")] = 0,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads of torch.")] = None,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Requests that are computed at once.")] = 64,
    cache_tokens: Annotated[
        int, typer.Option("--cache-tokens", min=0, help="Tokens of earlier prompts and answers that are kept.")
    ] = 32_768,
    native: Annotated[bool, typer.Option("--native/--no-native", help="Decode by compiled steps where it can.")] = True,
    device: Annotated[
        str, typer.Option("--device", parser=known_device, metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")
    ] = "auto",
    dtype: Annotated[Dtype, typer.Option("--dtype", help="The model's numbers.")] = Dtype.FLOAT32,
    max_context: Annotated[int | None, typer.Option("--max-context", min=1, help="Tokens; else the model's.")] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help=f"A file of mode 600 with the key; else {KEY_VARIABLE}.")
    ] = None,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="End when the pipe at standard input closes.")
    ] = False,
) -> None:
    """Serve a model's tokens. Prints one line of JSON with its port when it is ready."""
    if with_parent:
        die_with_parent()
    require("serve")
    key = _key(key_file)
    from loopwright.build import ServedModel

    served = ServedModel(
        model,
        models_folder(),
        dtype=dtype,
        max_context=max_context,
        threads=threads,
        max_batch=max_batch,
        cache_tokens=cache_tokens,
        native=native,
        device=device,
    )
    asyncio.run(_serve(served, host, port, key))


def _key(file: Path | None) -> str | None:
    if file is not None:
        return read_key(file)
    # Remove it from the environment, so that no child process sees it.
    key = os.environ.pop(KEY_VARIABLE, None)
    return None if key is None else check_key(key, f"the environment variable {KEY_VARIABLE}")


async def _serve(served: ServedModel, host: str, port: int, key: str | None) -> None:
    from loopwright.build import end_process, serve_engine

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve_engine(served, host=host, port=port, key=key, on_loss=end_process) as bound:
        typer.echo(json.dumps({"host": host, "port": bound, "pid": os.getpid()}))
        # From now on, what libraries print to standard output must not reach the reader of our line.
        sys.stdout.flush()
        sys.stdout = sys.stderr
        await stop.wait()
