"""`loopwright worker` and `loopwright gateway --relay`, each in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from run_house import free_port

from loopwright.core.chains import turns_of
from loopwright.engines.torch.engine import TorchEngine
from loopwright.gateway.record import record_from_json
from loopwright.models.compute import ComputeThread
from loopwright.models.load import load_model
from loopwright.types import GenerateRequest, Sampling

KEY = "the-key-of-the-gateway"
SESSIONS, AT_ONCE, TURNS, TOKENS = 200, 32, 2, 24


async def start(folder: Path, name: str, *arguments: str, key: str = KEY) -> tuple[subprocess.Popen[bytes], Any]:
    """A command of ours, and the line that it says when it is ready. None if it ended before."""
    env = {**os.environ, "LOOPWRIGHT_GATEWAY_KEY": key, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "loopwright.cli", *arguments]

    def started() -> tuple[subprocess.Popen[bytes], bytes]:
        with (folder / f"{name}.txt").open("wb") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env)
        assert process.stdout is not None
        return process, process.stdout.readline()

    process, line = await asyncio.to_thread(started)
    return process, json.loads(line) if line else None


@asynccontextmanager
async def three(folder: Path, model: Path) -> AsyncIterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A gateway, a worker that computes, an engine, and a worker in front of it."""
    url = f"http://127.0.0.1:{free_port()}"
    store = str(folder / "sessions.sqlite")
    started: list[subprocess.Popen[bytes]] = []
    try:
        gateway, said = await start(folder, "gateway", "gateway", "--relay", "--port", url[17:], "--store", store)
        started.append(gateway)
        assert said is not None, (folder / "gateway.txt").read_text()
        engine, said = await start(folder, "engine", "engine", "--model", str(model), "--threads", "1")
        started.append(engine)
        assert said is not None, (folder / "engine.txt").read_text()
        for name, own in (
            ("one", ("--model", str(model), "--threads", "1")),
            ("two", ("--engine", f"http://127.0.0.1:{said['port']}")),
        ):
            worker, said = await start(folder, name, "worker", "--gateway", url, "--name", name, *own)
            started.append(worker)
            assert said is not None, (folder / f"{name}.txt").read_text()
            assert (said["worker"], said["gateway"], said["pid"]) == (name, url, worker.pid)
        yield url, started
    finally:
        end(started)


@pytest.mark.real
async def test_two_workers_serve_200_sessions_and_one_is_killed(tmp_path: Path, tiny_llama_folder: Path) -> None:
    async with (
        three(tmp_path, tiny_llama_folder) as (url, (_, _, one, _)),
        httpx.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=120, trust_env=False
        ) as http,
    ):
        free, done = asyncio.Semaphore(AT_ONCE), 0

        async def session(number: int) -> None:
            nonlocal done
            place = f"/sessions/session-{number}"
            async with free:
                sampling = {"temperature": 1.0, "max_new_tokens": TOKENS}
                (await http.post(place, json={"seed": number, "sampling": sampling})).raise_for_status()
                for turn in range(TURNS):
                    body = {"messages": [{"role": "user", "content": f"Count to {number}, {turn}"}]}
                    answer = await http.post(f"{place}/v1/chat/completions", json={**body, "stream": number % 2 == 0})
                    assert answer.status_code == 200, answer.text
                    done += 1
                    if done == SESSIONS * TURNS // 2:
                        one.send_signal(signal.SIGKILL)

        await asyncio.gather(*(session(number) for number in range(SESSIONS)))
        records = [(await http.get(f"/sessions/session-{number}/record")).json() for number in range(SESSIONS)]
    await check(tmp_path, tiny_llama_folder, records)


async def check(folder: Path, model: Path, records: list[dict[str, Any]]) -> None:
    """Each token's logprob is the model's own after all that came before it: none is missing, twice or out of place."""
    with ComputeThread() as compute:
        loaded = await compute.run(load_model, str(model), cache=folder, dtype="float32")
        async with TorchEngine(loaded, compute) as engine:
            turns = [
                turn for record in records for chain in record_from_json(record).chains for turn in turns_of(chain)
            ]
            assert len(turns) == SESSIONS * TURNS
            for turn in turns:
                whole = GenerateRequest("", (*turn.prompt_ids, *turn.ids), Sampling(max_new_tokens=1))
                scored = (await engine.probe(whole)).prompt_logprobs[-len(turn.ids) :]
                assert max(abs(a - b) for a, b in zip(scored, turn.logprobs, strict=True)) < 1e-4
                assert set(turn.versions) == {0}


@pytest.mark.real
async def test_a_worker_with_a_wrong_key_ends_with_the_reason(tmp_path: Path, tiny_llama_folder: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    gateway, said = await start(
        tmp_path, "gateway", "gateway", "--relay", "--port", url[17:], "--store", str(tmp_path / "sessions.sqlite")
    )
    started = [gateway]
    try:
        assert said is not None
        dials = ("worker", "--gateway", url, "--model", str(tiny_llama_folder))
        worker, said = await start(tmp_path, "worker", *dials, key="another-key-of-somebody")
        started.append(worker)
        assert (said, worker.wait(timeout=60)) == (None, 1)
        assert "401: the key is missing or wrong" in (tmp_path / "worker.txt").read_text()
    finally:
        end(started)


def end(started: list[subprocess.Popen[bytes]]) -> None:
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
