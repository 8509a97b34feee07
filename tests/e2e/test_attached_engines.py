"""Runs that train on engines which somebody else has started, here engines with scripted answers."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from loopwright.build import open_run, servers
from loopwright.config import load
from loopwright.config.transport import Transport, TransportChoice
from loopwright.engines.http.client import HttpEngine
from loopwright.engines.http.model_card import ModelCard
from loopwright.errors import LeaseError, ModelError
from loopwright.models.tokenizer import load_tokenizer
from loopwright.runs.auditing.audit import audit
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.serve.keys import write_key
from loopwright.testing.scripted import ScriptedEngine
from loopwright.testing.scripted_server import Replies, ScriptedReply, serve_scripted, text_engine
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.track.jsonl import read_jsonl
from loopwright.types import GenerateRequest, Sampling

WriteConfig = Callable[..., Path]
KEY = "the-key-of-the-engine"


ANSWERS = ["aeiou", "xyz", "ae", "xe"]


def attached(url: str, proof: str = "off", **more: Any) -> dict[str, Any]:
    """A run on the engine at `url`. Scripted ones compute nothing, and cannot be proven."""
    return {
        "produce": {"kind": "async", "max_staleness": 0},
        "rollout__engine": {"kind": "loopwright", "urls": [url], "key_env": "ENGINE_KEY", "proof": proof},
        "trainer__kind": "disaggregated",
        "trainer__steps": 2,
        "eval": None,
        **more,
    }


def engine_of(model: Path) -> ScriptedEngine:
    return text_engine(Replies([ScriptedReply(ANSWERS)]), load_tokenizer(str(model)))


@pytest.fixture
def engine(tiny_model: Path) -> ScriptedEngine:
    return engine_of(tiny_model)


def card_of(model: Path, max_context: int = 1024) -> ModelCard:
    return ModelCard(str(model), max_context)


async def run(file: Path) -> RunFolder:
    loaded = load(file, [], {"ENGINE_KEY": KEY})
    async with open_run(loaded, cache=file.parent, stop=asyncio.Event(), env=os.environ) as opened:
        assert await opened.train()
        return opened.folder


async def test_a_run_trains_on_an_engine_that_already_runs(
    write_config: WriteConfig, tiny_model: Path, engine: ScriptedEngine
) -> None:
    async with serve_scripted(engine, card_of(tiny_model), key=KEY) as url:
        folder = await run(write_config(**attached(url)))
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=url, headers=headers) as http:
            assert (await http.get("/version")).json() == {"version": 2}
            assert (await http.get("/is_paused")).json() == {"is_paused": False}
            taken = await http.post("/lease", json={"run": "another", "lineage": 0, "seconds": 1})
            assert taken.status_code == 200, "the run has given its lease back"
    stored = StoredRun(folder.rollouts)
    assert stored.steps() == (1, 2)
    answers = {rollout.episode.answer for step in (1, 2) for rollout in stored.rollouts(step) if rollout.episode}
    assert answers == set(ANSWERS)


async def test_an_engine_of_another_run_is_refused(
    write_config: WriteConfig, tiny_model: Path, engine: ScriptedEngine
) -> None:
    async with serve_scripted(engine, card_of(tiny_model), key=KEY) as url:
        async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {KEY}"}) as http:
            await http.post("/lease", json={"run": "another", "lineage": 0, "seconds": 60})
        with pytest.raises(LeaseError, match=r"run another \(lineage 0\) holds this server"):
            await run(write_config(**attached(url)))


async def test_an_engine_with_another_context_or_vocabulary_is_refused(
    write_config: WriteConfig, tiny_model: Path, engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with serve_scripted(engine, card_of(tiny_model, 512), key=KEY) as url:
        with pytest.raises(ModelError, match="has a context of 512 tokens, and the run's model 1,024"):
            await run(write_config(**attached(url)))
    other = tiny_tokenizer()
    other.add_tokens(["<|another|>"])
    other.save_pretrained(tmp_path / "other")
    async with serve_scripted(engine, card_of(tmp_path / "other"), key=KEY) as url:
        with pytest.raises(ModelError, match="whose vocabulary is not that of the run's"):
            await run(write_config(**attached(url)))


async def test_a_door_is_open_while_the_run_is(
    write_config: WriteConfig, tiny_model: Path, engine: ScriptedEngine
) -> None:
    async with serve_scripted(engine, card_of(tiny_model), key=KEY) as url:
        file = write_config(**attached(url, rollout__door={}))
        loaded = load(file, [], {"ENGINE_KEY": KEY})
        async with open_run(loaded, cache=file.parent, stop=asyncio.Event(), env=os.environ) as opened:
            place = opened.folder.door
            door = json.loads(place.read_text())
            assert stat.S_IMODE(place.stat().st_mode) == 0o600
            async with HttpEngine.connect(door["url"], door["key"]) as client:
                assert await client.model() == card_of(tiny_model)
                await opened.step()
                answer = await client.generate(GenerateRequest("mine/0", (5, 6), Sampling(max_new_tokens=3)))
                assert answer.versions == (1, 1, 1)
        assert not place.exists()


async def test_a_run_has_one_name_and_takes_its_engine_over_when_it_is_opened_again(
    write_config: WriteConfig, tiny_model: Path, engine: ScriptedEngine
) -> None:
    async with serve_scripted(engine, card_of(tiny_model), key=KEY) as url:
        folder = await run(write_config(**attached(url)))
        name = folder.stored_id()
        async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {KEY}"}) as http:
            # As if it had been killed: nobody has given the lease back.
            await http.post("/lease", json={"run": name, "lineage": 0, "seconds": 60})
        folder = await run(write_config(**attached(url, trainer__steps=3)))
        assert folder.stored_id() == name
        assert StoredRun(folder.rollouts).steps() == (1, 2, 3)


async def test_an_engine_that_is_started_again_in_the_middle_of_a_run_is_waited_for(
    write_config: WriteConfig, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopwright.serve.listen.GRACE_SECONDS", 0.05)
    slow, again = engine_of(tiny_model), engine_of(tiny_model)
    # With the weights of step 1 it never gets to the end of an answer.
    monkeypatch.setattr(slow, "_seconds", lambda request: 600.0 if slow.version else 0.001)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        url = await first.enter_async_context(serve_scripted(slow, card_of(tiny_model), key=KEY))
        loaded = load(file := write_config(**attached(url)), [], {"ENGINE_KEY": KEY})
        async with open_run(loaded, cache=file.parent, stop=asyncio.Event(), env=os.environ) as opened:
            await opened.step()
            await first.aclose()
            stepping = asyncio.create_task(opened.step())
            await asyncio.sleep(0.3)
            assert not stepping.done()
            port = int(url.rpartition(":")[2])
            await stack.enter_async_context(serve_scripted(again, card_of(tiny_model), port=port, key=KEY))
            await stepping
    stored = StoredRun(opened.folder.rollouts)
    assert again.requests
    assert again.version == 2
    for rollout in stored.rollouts(2):
        assert rollout.episode is not None
        assert rollout.episode.answer in ANSWERS, "no token was lost or sampled twice"
        assert {version for chain in rollout.episode.chains for version in chain.versions} == {-1, 1}
    assert audit(opened.folder.rollouts).is_clean


@asynccontextmanager
async def process(*words: str, log: Path, **env: str) -> AsyncIterator[str]:
    """A server that is a process of its own, killed at the end. Gives its URL when it is ready."""
    with log.open("ab") as stderr:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **env},
        )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(120):
            ready = json.loads(await child.stdout.readline())
        yield f"http://127.0.0.1:{ready['port']}"
    finally:
        child.kill()
        await child.wait()


@pytest.mark.real
async def test_a_scripted_engine_in_a_process_of_its_own_is_killed_and_started_again(
    write_config: WriteConfig, tiny_model: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.json"
    script.write_text(
        json.dumps({"model": str(tiny_model), "seconds": 0.2, "replies": [{"when": "What is", "say": ANSWERS}]})
    )
    key_file = tmp_path / "key"
    write_key(key_file, KEY)
    words = ("loopwright.testing.scripted_server", str(script), "--key-file", str(key_file), "--port")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        url = await first.enter_async_context(process(*words, "0", log=tmp_path / "log"))
        loaded = load(file := write_config(**attached(url, trainer__steps=3)), [], {"ENGINE_KEY": KEY})
        async with open_run(loaded, cache=file.parent, stop=asyncio.Event(), env=os.environ) as opened:
            await opened.step()
            await first.aclose()
            await stack.enter_async_context(process(*words, url.rpartition(":")[2], log=tmp_path / "log"))
            assert await opened.train()
        async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {KEY}"}) as http:
            assert (await http.get("/version")).json() == {"version": 3}
            assert (await http.get("/is_paused")).json() == {"is_paused": False}
    assert audit(opened.folder.rollouts).is_clean


@pytest.mark.real
@pytest.mark.parametrize("transport", [Transport.FILE, Transport.BROADCAST])
async def test_a_real_engine_that_already_runs_samples_with_the_learners_weights(
    write_config: WriteConfig, tiny_model: Path, tmp_path: Path, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it counts as one of another machine, to which the weights are broadcast."""
    monkeypatch.setattr(servers, "transport_to", lambda url: TransportChoice(transport, "the test says so"))
    words = ("loopwright.cli", "engine", "--model", str(tiny_model), "--threads", "1")
    async with process(*words, log=tmp_path / "log", LOOPWRIGHT_ENGINE_KEY=KEY) as url:
        folder = await run(write_config(**attached(url, "on")))
    mismatch = [one["learner/mismatch_mean"] for one in read_jsonl(folder.metrics) if "learner/mismatch_mean" in one]
    assert len(mismatch) == 2
    assert max(mismatch) < 1e-4, "tokens are trained by the weights that sampled them"
    proofs = [one["engine/0/proof_max"] for one in read_jsonl(folder.metrics) if "engine/0/proof_max" in one]
    assert len(proofs) == 2
    assert max(proofs) < 1e-4


async def test_an_engine_that_computes_nothing_must_be_said_to_be_one(
    write_config: WriteConfig, tiny_model: Path, engine: ScriptedEngine
) -> None:
    async with serve_scripted(engine, card_of(tiny_model), key=KEY) as url:
        with pytest.raises(ModelError, match="computes nothing"):
            await run(write_config(**attached(url, "on")))
