"""Whole runs whose learner has two ranks: colocated and not, and resumed on another number of ranks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
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
    exported = AutoModelForCausalLM.from_pretrained(folder.export)
    saved = load_file(folder.checkpoints / "step-000003" / "model.safetensors")
    assert torch.equal(exported.get_input_embeddings().weight, saved["model.embed_tokens.weight"])
    assert (folder.ranks / "rank-1.log").exists()


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


def ranks_of_this_process() -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()[1:]]
    return sorted(int(pid) for pid, above, args in rows if int(above) == os.getpid() and "learner-rank" in args)


@pytest.mark.parametrize(("number", "how"), [(0, signal.SIGKILL), (1, signal.SIGSTOP)])
async def test_a_run_goes_on_when_a_rank_is_lost(
    write_config: WriteConfig, tmp_path: Path, number: int, how: signal.Signals
) -> None:
    file = write_config(**RANKS, trainer__checkpoint_every=1, trainer__stall_seconds=20)
    async with open_run(load(file), cache=tmp_path, stop=asyncio.Event()) as opened:
        assert await opened.step() is not None
        os.kill(ranks_of_this_process()[number], how)
        assert await opened.train()
        folder = opened.folder
    assert [record["step"] for record in steps_of(folder)] == [1, 2, 3]
    lost = [event for event in read_jsonl(folder.events) if event.get("name") == "learner_lost" and "facts" in event]
    assert [event["facts"]["rank"] for event in lost] == [number]
    assert audit(folder.rollouts).is_clean
    assert ranks_of_this_process() == []
