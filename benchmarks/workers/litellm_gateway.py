"""LiteLLM's proxy, as its documentation starts it: one worker, a config with one model, a master key, no database.

Nothing is logged or called home. It passes answers on, ids and logprobs included, and keeps none of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.workers.http_load import Door
from benchmarks.workers.port import Port
from benchmarks.workers.proxy_round import STARTING_SECONDS, Proxy, Spec, end, keep_open, serve_rounds

QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "NO_DOCS": "True",
    "DISABLE_ADMIN_UI": "True",
}


@asynccontextmanager
async def litellm(spec: Spec, upstream: int) -> AsyncIterator[Proxy]:
    key, port = f"sk-{secrets.token_hex(16)}", _free_port()
    config = Path(spec["folder"]) / "litellm.yaml"
    behind = {"model": "openai/bench", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "none"}
    # JSON is YAML.
    config.write_text(json.dumps({"model_list": [{"model_name": "bench", "litellm_params": behind}]}))
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("litellm")),
        *("--config", str(config), "--host", "127.0.0.1", "--port", str(port)),
        *("--num_workers", "1", "--telemetry", "False"),
        stdin=PIPE,
        env={**os.environ, **QUIET, "LITELLM_MASTER_KEY": key},
    )
    try:
        await _listening(process, port)

        async def doors(count: int) -> Sequence[Door]:
            return [Door("/v1/chat/completions", {"authorization": f"Bearer {key}"})] * count

        yield Proxy(port, process.pid, doors, keep_open)
    finally:
        await end(process)


async def _listening(process: asyncio.subprocess.Process, port: int) -> None:
    async with asyncio.timeout(STARTING_SECONDS):
        while process.returncode is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.2)
                continue
            writer.close()
            return
    raise RuntimeError(f"litellm ended with exit code {process.returncode}")


def _free_port() -> int:
    """It has to be told which: it does not say where it listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


if __name__ == "__main__":
    asyncio.run(serve_rounds(Port(), litellm, "litellm"))
