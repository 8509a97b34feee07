"""Starts vLLM servers, and keeps them from outliving the run.

A server runs below a guard (`guard.py`), which ends it with all that it started when this process is gone. It listens
on loopback, because its development routes have no key; on another node of a cluster it listens on the node's private
address.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loopwright.config.engines import VLLM_RANKS
from loopwright.core.environment import child_environment
from loopwright.core.own_command import own_command
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.vllm.adapters import SLOTS
from loopwright.engines.vllm.engine import EXTENSION, VllmEngine
from loopwright.engines.vllm.guard import END_SECONDS, LOOPBACK
from loopwright.engines.worker import Worker
from loopwright.errors import ConfigError
from loopwright.serve.child import Child, child_process

EXTENSION_FOLDER = Path(__file__).parent / "extension"
"""The only part of Loopwright that a server sees: it has an environment of its own."""


@dataclass(frozen=True, slots=True)
class VllmServer:
    """One server to start. `cores` are those that it may use. `state` is a file of the guard, by which a later run
    finds what a killed guard left."""

    executable: str
    model: str
    dtype: str
    max_context: int
    max_batch: int
    args: tuple[str, ...]
    env: Mapping[str, str]
    cores: tuple[int, ...]
    log: Path
    state: Path
    start_seconds: float
    sleeps: bool = False
    """Whether it releases its memory while the learner trains on the same device."""
    host: str = LOOPBACK
    adapter_rank: int | None = None
    """The largest rank of the adapters that it will get. None: it gets whole weights."""


def vllm_command(server: VllmServer) -> list[str]:
    """The command of the server. The guard puts a free port into it."""
    return [
        *(server.executable, "serve", server.model, "--host", server.host, "--port", "{port}"),
        *("--dtype", server.dtype, "--max-model-len", str(server.max_context)),
        *("--max-num-seqs", str(server.max_batch), "--enable-scale-out"),
        *("--logprobs-mode", "processed_logprobs", "--worker-extension-cls", EXTENSION),
        # The only library that reads our grammars.
        "--structured-outputs-config.backend=guidance",
        *_for_adapters(server.adapter_rank),
        *server.args,
    ]


def _for_adapters(rank: int | None) -> list[str]:
    if rank is None:
        return []
    room = next(largest for largest in VLLM_RANKS if rank <= largest)
    return ["--enable-lora", "--max-lora-rank", str(room), "--max-loras", str(SLOTS)]


def vllm_environment(server: VllmServer, env: Mapping[str, str]) -> dict[str, str]:
    """What the server sees: the harmless part of `env`, what it needs, and what the user sets."""
    cores = ",".join(map(str, server.cores))
    path = [str(EXTENSION_FOLDER), *([server.env["PYTHONPATH"]] if "PYTHONPATH" in server.env else [])]
    ours = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_NO_USAGE_STATS": "1"}
    if server.adapter_rank is not None:
        ours["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    # The settings of Python and its environment are those of this process, and the server has another one.
    passed = child_environment(env).items()
    theirs = {name: value for name, value in passed if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return theirs | ours | dict(server.env) | {"PYTHONPATH": os.pathsep.join(path)}


@asynccontextmanager
async def vllm_server(
    server: VllmServer, *, env: Mapping[str, str], apart: bool = False
) -> AsyncIterator[tuple[Child, str]]:
    """Start the server. Gives its guard and its URL. Leaving the context ends it. If this process may be killed
    together with its children, the guard must be `apart`."""
    check_private(server.host)
    guard = own_command("loopwright.engines.vllm.guard", "--state", str(server.state))
    guard += ["--log", str(server.log), "--start-seconds", str(server.start_seconds), "--host", server.host]
    guard += ["--apart"] if apart else []
    async with child_process(
        [*guard, "--", *vllm_command(server)],
        env=vllm_environment(server, env),
        log=server.log,
        ready_seconds=server.start_seconds + END_SECONDS,
        grace_seconds=END_SECONDS,
        cleans_up=True,
    ) as child:
        yield child, f"http://{server.host}:{child.ready['port']}"


@asynccontextmanager
async def vllm_process(server: VllmServer, labels: VersionLabels, *, env: Mapping[str, str]) -> AsyncIterator[Worker]:
    """Start the server, and connect to it. Leaving the context ends it."""
    async with (
        vllm_server(server, env=env) as (child, url),
        VllmEngine.connect(url, None, labels=labels, sleeps=server.sleeps) as engine,
    ):
        yield Worker(engine, child.wait, replace(await engine.capacity(), sequences=server.max_batch))


def check_private(host: str) -> None:
    """Whoever reaches the development routes can change the weights, so the internet must not (S3)."""
    try:
        is_private = ipaddress.ip_address(host).is_private
    except ValueError:
        is_private = False
    if not is_private:
        raise ConfigError(
            f"a vLLM server at {host} could be reached from the internet, and its development routes have no key",
            remedy="give the node a private address (ray start --node-ip-address), or start vLLM yourself: "
            "rollout.engine.urls",
        )


def cores_of(number: int, engines: int, available: Sequence[int]) -> tuple[int, ...]:
    """The cores of server `number` of so many. Several servers share the cores evenly: their threads are pinned, and
    two on one core halve each other's speed."""
    if engines >= len(available):
        return (available[number % len(available)],)
    return tuple(available[number * len(available) // engines : (number + 1) * len(available) // engines])
