"""Runs the embedded engine in its own process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from loopwright.config.extras import require
from loopwright.core.environment import computing_environment
from loopwright.core.own_command import own_command
from loopwright.engines.worker import Worker
from loopwright.serve.child import child_process
from loopwright.serve.keys import new_key
from loopwright.types import UNKNOWN_CAPACITY, EngineCapacity

KEY_VARIABLE = "LOOPWRIGHT_ENGINE_KEY"
START_SECONDS = 600.0


def engine_command(
    model: str,
    *,
    dtype: str = "float32",
    max_context: int | None = None,
    threads: int | None = None,
    max_batch: int,
    cache_tokens: int = 0,
    native: bool = True,
    device: str = "auto",
) -> list[str]:
    """The command `loopwright engine`, run by the same Python as this process."""
    command = own_command("loopwright.cli", "engine", "--with-parent")
    command += ["--model", model, "--device", device, "--dtype", dtype]
    command += ["--max-batch", str(max_batch), "--cache-tokens", str(cache_tokens)]
    for option, value in (("--max-context", max_context), ("--threads", threads)):
        command += [] if value is None else [option, str(value)]
    return command if native else [*command, "--no-native"]


@asynccontextmanager
async def engine_process(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    start_seconds: float = START_SECONDS,
    capacity: EngineCapacity = UNKNOWN_CAPACITY,
) -> AsyncIterator[Worker]:
    """Start the engine with a new key that only both processes know, and connect to it. `env` is the caller's
    environment; the engine sees only the allow-listed part of it. Leaving the context ends the engine."""
    require("serve")
    from loopwright.engines.http.client import HttpEngine

    key = new_key()
    with_key = computing_environment(env) | {KEY_VARIABLE: key}
    async with (
        child_process(command, env=with_key, log=log, ready_seconds=start_seconds) as child,
        HttpEngine.connect(f"http://127.0.0.1:{child.ready['port']}", key) as engine,
    ):
        yield Worker(engine, child.wait, capacity)
