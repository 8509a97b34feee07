"""Runs that train on engines which somebody else has started, here engines with scripted answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from loopwright.buffer.reader import StoredRun
from loopwright.build import open_run
from loopwright.config import load
from loopwright.engines.http.model_card import ModelCard
from loopwright.models.tokenizer import load_tokenizer
from loopwright.testing.scripted import ScriptedEngine
from loopwright.testing.scripted_server import Replies, ScriptedReply, serve_scripted, text_engine

WriteConfig = Callable[..., Path]
KEY = "the-key-of-the-engine"


def attached(*urls: str, **more: Any) -> dict[str, Any]:
    return {
        "produce": {"kind": "async"},
        "rollout__engine": {"kind": "loopwright", "urls": list(urls), "key_env": "ENGINE_KEY", **more},
        "trainer__kind": "disaggregated",
        "trainer__steps": 2,
        "eval": None,
    }


@pytest.fixture
def engine(tiny_model: Path) -> ScriptedEngine:
    tokenizer = load_tokenizer(str(tiny_model))
    return text_engine(Replies([ScriptedReply(["aeiou", "xyz", "ae", "xe"])]), tokenizer)


def card_of(model: Path, max_context: int = 1024) -> ModelCard:
    return ModelCard(str(model), max_context)


async def run(file: Path) -> Any:
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
    answers = {one.episode.answer for step in (1, 2) for one in stored.rollouts(step) if one.episode is not None}
    assert answers == {"aeiou", "xyz", "ae", "xe"}
