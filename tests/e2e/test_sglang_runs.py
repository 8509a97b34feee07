"""A run that trains on SGLang servers, here on fakes that compute: each update is proven, and a lost server is waited
for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from losing import Losses

from loopwright.build import lineage, open_run
from loopwright.config import load
from loopwright.errors import ProofError
from loopwright.runs.auditing.audit import audit
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.testing.sglang_server import Options, serve_sglang
from loopwright.track.jsonl import read_jsonl

WriteConfig = Callable[..., Path]
KEY = "the-key-of-the-server"


def on_servers(*urls: str, **more: Any) -> dict[str, Any]:
    return {
        "produce": {"kind": "async", "max_staleness": 1, "in_flight": "abort"},
        "rollout__engine": {"kind": "sglang", "urls": list(urls), "key_env": "SGLANG_KEY"},
        "trainer__kind": "disaggregated",
        "trainer__steps": 3,
        "eval": None,
        **more,
    }


async def train(file: Path) -> RunFolder:
    loaded = load(file, [], {"SGLANG_KEY": KEY})
    async with open_run(loaded, cache=file.parent, stop=asyncio.Event(), env=os.environ) as opened:
        assert await opened.train()
        return opened.folder


async def test_a_run_trains_on_sglang_servers_and_each_update_is_proven(
    write_config: WriteConfig, tiny_model: Path
) -> None:
    options = Options(api_key=KEY)
    async with serve_sglang(tiny_model, options) as one, serve_sglang(tiny_model, options) as other:
        folder = await train(write_config(**on_servers(one.url, other.url)))
        async with httpx.AsyncClient(base_url=one.url, headers={"authorization": f"Bearer {KEY}"}) as http:
            label = (await http.get("/model_info")).json()["weight_version"]
            answer = await http.post("/generate", json={"input_ids": [5], "sampling_params": {"max_new_tokens": 1}})
    assert label.endswith(":0:3")
    assert answer.status_code == 200, "the run leaves the server going on"
    rows = [row for row in read_jsonl(folder.metrics) if "engine/0/proof_max" in row]
    assert len(rows) == 3
    assert all(row["engine/0/proof_max"] < 5e-4 and row["engine/1/proof_max"] < 5e-4 for row in rows)
    stored = StoredRun(folder.rollouts)
    assert stored.steps() == (1, 2, 3)
    assert audit(folder.rollouts).is_clean


async def test_a_run_goes_on_when_one_of_two_servers_dies(write_config: WriteConfig, tiny_model: Path) -> None:
    options = Options(api_key=KEY)
    async with serve_sglang(tiny_model, options) as one, serve_sglang(tiny_model, options) as other:
        one.faults.die_after_tokens = 150
        folder = await train(write_config(**on_servers(one.url, other.url)))
        assert one.dead.is_set()
    assert StoredRun(folder.rollouts).steps() == (1, 2, 3)
    assert audit(folder.rollouts).is_clean


async def test_a_server_that_changes_nothing_is_caught_in_that_sync(
    write_config: WriteConfig, tiny_model: Path
) -> None:
    async with serve_sglang(tiny_model, Options(api_key=KEY)) as server:
        server.faults.ignore_updates = True
        with pytest.raises(ProofError, match="engine 0 does not serve the weights of version 1"):
            await train(write_config(**on_servers(server.url)))


async def test_a_resumed_run_goes_on_with_the_same_server(write_config: WriteConfig, tiny_model: Path) -> None:
    """The server still has the keys of the run's first opening, under labels that nobody uses again."""
    async with serve_sglang(tiny_model, Options(api_key=KEY)) as server:
        server.faults.keep_cache = True
        await train(write_config(**on_servers(server.url, trainer__steps=2)))
        folder = await train(write_config(**on_servers(server.url, trainer__steps=4)))
    assert StoredRun(folder.rollouts).steps() == (1, 2, 3, 4)
    assert audit(folder.rollouts).is_clean


async def test_after_a_loss_of_the_learner_the_same_number_names_other_weights(
    write_config: WriteConfig, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server still has the keys of the lost weights."""
    monkeypatch.setattr(lineage, "open_learner", Losses([("step", 3)]).opener())
    async with serve_sglang(tiny_model, Options(api_key=KEY)) as server:
        server.faults.keep_cache = True
        fresh = {"kind": "async", "max_staleness": 0}
        folder = await train(write_config(**on_servers(server.url, produce=fresh)))
        async with httpx.AsyncClient(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}) as http:
            label = (await http.get("/model_info")).json()["weight_version"]
    assert label.endswith(":1:3")
    mismatch = [row["learner/mismatch_mean"] for row in read_jsonl(folder.metrics) if "learner/mismatch_mean" in row]
    assert len(mismatch) == 3
    assert max(mismatch) < 1e-4
    assert audit(folder.rollouts).is_clean


async def test_a_colocated_run_trains_on_a_server(write_config: WriteConfig, tiny_model: Path) -> None:
    async with serve_sglang(tiny_model, Options(api_key=KEY)) as server:
        settings = on_servers(server.url, produce={"kind": "sync"}, trainer__kind="colocate", trainer__steps=2)
        folder = await train(write_config(**settings))
    assert StoredRun(folder.rollouts).steps() == (1, 2)
    assert audit(folder.rollouts).is_clean
