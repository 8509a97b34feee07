"""Whole runs whose learner has two ranks: colocated and not, and resumed on another number of ranks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from loopwright.build import export_model, open_run
from loopwright.config import load
from loopwright.learn.ranks.learner import RankedLearner
from loopwright.runs.auditing.audit import audit
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.run_status import read_status
from loopwright.track.jsonl import read_jsonl

pytestmark = pytest.mark.real

WriteConfig = Callable[..., Path]
RANKS = {"learner__ranks": 2, "rollout__engine": {"num_engines": 1}, "model__device": "cpu"}


async def run(file: Path, *overrides: str) -> RunFolder:
    async with open_run(load(file, overrides), cache=file.parent, stop=asyncio.Event()) as opened:
        assert isinstance(opened.learner, RankedLearner) == (load(file, overrides).config.learner.ranks > 1)
        await opened.train()
        return opened.folder


def steps_of(folder: RunFolder) -> list[dict[str, Any]]:
    return [record for record in read_jsonl(folder.metrics) if "learner/loss" in record]


@pytest.mark.parametrize("kind", [{}, {"trainer__kind": "disaggregated", "produce__kind": "async"}])
async def test_a_run_of_two_ranks_trains_and_its_engine_serves_their_weights(
    write_config: WriteConfig, tmp_path: Path, kind: dict[str, Any]
) -> None:
    folder = await run(write_config(**RANKS, **kind))
    steps = steps_of(folder)
    assert [record["step"] for record in steps] == [1, 2, 3]
    assert all(0 < record["learner/rank/1/communication_share"] < 1 for record in steps)
    lanes = [(one["step"], one["who"]) for one in read_jsonl(folder.events) if one["name"] == "compute"]
    assert sorted(lanes) == [(step, f"rank {rank}") for step in (1, 2, 3) for rank in (0, 1)]
    ranks = read_status(folder).told["ranks"]
    assert [(one["rank"], one["alive"], one["tokens_per_second"] > 0) for one in ranks] == [
        (0, True, True),
        (1, True, True),
    ]
    exported = AutoModelForCausalLM.from_pretrained(folder.export)
    saved = load_file(folder.checkpoints / "step-000003" / "model.safetensors")
    assert torch.equal(exported.get_input_embeddings().weight, saved["model.embed_tokens.weight"])
    assert (folder.ranks / "rank-1.log").exists()


@pytest.mark.parametrize("kind", [{}, {"trainer__kind": "disaggregated", "produce__kind": "async"}])
@pytest.mark.parametrize(("rank", "by"), [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)])
async def test_a_run_survives_its_ranks(
    write_config: WriteConfig, kind: dict[str, Any], rank: int, by: signal.Signals
) -> None:
    """One that is killed is named at once, one that is stopped when it was silent."""
    file = write_config(**RANKS, **kind, trainer__steps=5, trainer__stall_seconds=10, eval=None)
    async with open_run(load(file), cache=file.parent, stop=asyncio.Event()) as opened:
        training, first = asyncio.create_task(opened.train()), opened.learner
        while opened.version < 3:
            await asyncio.sleep(0.01)
        os.kill(ranks_of(os.getpid())[rank], by)
        assert await asyncio.wait_for(training, 240)
        assert opened.learner is not first
    (lost,) = [event for event in read_jsonl(opened.folder.events) if event["name"] == "learner_lost"]
    assert (lost["facts"]["rank"], lost["facts"]["checkpoint"]) in ((rank, 2), (rank, 4))
    assert [record["step"] for record in steps_of(opened.folder)] == [1, 2, 3, 4, 5]
    audited = audit(opened.folder.rollouts)
    assert (audited.findings, audited.lineages) == ((), 2)
    assert ranks_of(os.getpid()) == []


async def test_a_run_survives_a_rank_that_dies_while_it_is_opened(write_config: WriteConfig) -> None:
    file = write_config(**RANKS, trainer__steps=1, eval=None)
    opening = asyncio.ensure_future(open_run(load(file), cache=file.parent, stop=asyncio.Event()))
    while len(ranks_of(os.getpid())) < 2:
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)
    os.kill(ranks_of(os.getpid())[1], signal.SIGKILL)
    async with await asyncio.wait_for(opening, 120) as opened:
        assert await opened.train()
    (lost,) = [event for event in read_jsonl(opened.folder.events) if event["name"] == "learner_lost"]
    assert (lost["facts"]["rank"], lost["facts"]["checkpoint"]) == (1, 0)


def ranks_of(parent: int) -> list[int]:
    """The processes of ranks below this one, in the order of their start."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    found = [int(child) for child in children if b"learner-rank" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return sorted(found)


async def test_a_run_goes_on_with_one_rank_and_with_two_again(write_config: WriteConfig, tmp_path: Path) -> None:
    file = write_config(**RANKS, trainer__checkpoint_every=1)
    await run(file, "trainer.steps=1")
    await run(file, "trainer.steps=2", "learner.ranks=1")
    folder = await run(file, "trainer.steps=3")
    assert [record["step"] for record in steps_of(folder)] == [1, 2, 3]


async def test_a_checkpoint_of_ranks_is_a_model_that_others_can_load(write_config: WriteConfig, tmp_path: Path) -> None:
    folder = await run(write_config(**RANKS, trainer__export=False, trainer__steps=2))
    out = tmp_path / "out"
    export_model(folder, out)
    model = AutoModelForCausalLM.from_pretrained(out)
    checkpoint = AutoModelForCausalLM.from_pretrained(folder.checkpoints / "step-000002")
    assert torch.equal(model.get_input_embeddings().weight, checkpoint.get_input_embeddings().weight)
    assert not list((folder.checkpoints / "step-000002").rglob("*.metadata")), "torch's own metadata is pickled"
