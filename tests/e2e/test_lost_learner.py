"""Runs whose learner is lost, as if one of its ranks had died: they go on from the last checkpoint in the same process,
with the same engines, and leave what a run leaves that was killed and resumed there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from losing import Losses
from safetensors.numpy import load_file

from loopwright.build import lineage, open_run
from loopwright.build.running import Run
from loopwright.config import load
from loopwright.engines.http.model_card import ModelCard
from loopwright.runs.auditing.audit import audit
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.testing.scripted import ScriptedEngine
from loopwright.testing.scripted_server import serve_scripted
from loopwright.track.jsonl import read_jsonl
from loopwright.types import GenerateRequest

WriteConfig = Callable[..., Path]
KEY = "the-key-of-the-engine"
LETTERS = range(20, 60)
COLOCATED: dict[str, Any] = {"trainer__kind": "colocate"}
APART: dict[str, Any] = {"trainer__kind": "disaggregated", "produce": {"kind": "async", "max_staleness": 0}}
KINDS = pytest.mark.parametrize("kind", [COLOCATED, APART], ids=["colocated", "disaggregated"])


def answer(request: GenerateRequest) -> tuple[int, ...]:
    """The same for the same member of a group, whoever asks and when."""
    said = blake2b(f"{request.sampling.seed} {request.prompt_ids}".encode(), digest_size=4).digest()
    return tuple(LETTERS[byte % len(LETTERS)] for byte in said)


def settings(url: str, proof: str = "off", **more: Any) -> dict[str, Any]:
    engine = {"kind": "loopwright", "urls": [url], "key_env": "ENGINE_KEY", "proof": proof}
    return {"rollout__engine": engine, "trainer__steps": 4, "eval": None, **more}


@asynccontextmanager
async def opened(
    file: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch, stop: asyncio.Event | None = None
) -> AsyncIterator[Run]:
    monkeypatch.setattr(lineage, "open_learner", losses.opener())
    loaded = load(file, [], {"ENGINE_KEY": KEY})
    stop = stop or asyncio.Event()
    async with open_run(loaded, cache=file.parent, stop=stop, env=os.environ) as run:
        yield run


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[tuple[ScriptedEngine, str]]:
    scripted = ScriptedEngine(answer, steps=2)
    async with serve_scripted(scripted, ModelCard(str(tiny_model), 1024), key=KEY) as url:
        yield scripted, url


def events(folder: RunFolder, name: str) -> list[dict[str, Any]]:
    return [event for event in read_jsonl(folder.events) if event["name"] == name]


def metric(folder: RunFolder, name: str) -> dict[int, float]:
    found = [record["step"] for record in read_jsonl(folder.metrics) if name in record]
    assert len(found) == len(set(found)), "no step is told twice"
    return {record["step"]: record[name] for record in read_jsonl(folder.metrics) if name in record}


def check_whole(folder: RunFolder, losses: Losses, *, steps: int = 4) -> None:
    """All steps were trained, each once in the end, and the ledger knows every opening."""
    assert StoredRun(folder.rollouts).steps() == tuple(range(1, steps + 1))
    audited = audit(folder.rollouts)
    assert (audited.findings, audited.lineages) == ((), len(losses.versions))
    assert StoredRun(folder.rollouts).opened_at() == tuple(losses.versions)
    assert list(metric(folder, "learner/loss")) == list(range(1, steps + 1))
    assert not list(folder.checkpoints.glob(".*")), "no half checkpoint is left"
    assert len(events(folder, "learner_lost")) == len(losses.versions) - 1


async def weights_of_a_whole_run(
    write_config: WriteConfig, url: str, kind: dict[str, Any], path: Path
) -> dict[str, Any]:
    """Those of a run that lost nothing."""
    with pytest.MonkeyPatch.context() as patched:
        file = write_config(**settings(url, **kind, trainer__run_dir=str(path)))
        async with opened(file, Losses([]), patched) as run:
            assert await run.train()
        return dict(load_file(run.folder.export / "model.safetensors"))


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert set(one) == set(other)
    assert all((one[name] == other[name]).all() for name in one)


@KINDS
@pytest.mark.parametrize(
    ("at", "versions"),
    [
        ([("step", 1)], [0, 0]),
        ([("step", 3)], [0, 2]),
        ([("publish", 4)], [0, 2]),
        ([("save", 1)], [0, 0]),
        ([("save", 2)], [0, 2]),
        ([("export", 1)], [0, 4]),
        ([("step", 3), ("open", 2), ("publish", 4)], [0, 2, 2, 2]),
    ],
    ids=[
        "before a checkpoint",
        "in a step",
        "in a publish",
        "in the first save",
        "in a save",
        "in the export",
        "often",
    ],
)
async def test_a_run_goes_on_from_its_last_checkpoint(
    write_config: WriteConfig,
    engine: tuple[ScriptedEngine, str],
    monkeypatch: pytest.MonkeyPatch,
    kind: dict[str, Any],
    at: Sequence[tuple[str, int]],
    versions: list[int],
) -> None:
    scripted, url = engine
    losses = Losses(at)
    async with opened(write_config(**settings(url, **kind)), losses, monkeypatch) as run:
        first = run.learner
        assert await run.train()
        assert run.is_finished
        assert run.learner is not first
    assert losses.versions == versions
    check_whole(run.folder, losses)
    assert scripted.version == 4
    lost = events(run.folder, "learner_lost")[0]["facts"]
    assert (lost["rank"], lost["last_words"], lost["checkpoint"]) == (1, "Killed", versions[1])
    restarts = metric(run.folder, "learner/restarts")
    assert restarts == {step: len(versions) - 1 for step in range(versions[1] + 1, 5)}
    found = dict(load_file(run.folder.export / "model.safetensors"))
    assert_equal(found, await weights_of_a_whole_run(write_config, url, kind, run.path.with_name("whole")))
