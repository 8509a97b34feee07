"""The remote benchmark's two sides run the same programs, and ours refuses a round that did not go well."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.remote import Remote
from benchmarks.setting import Places
from benchmarks.workers.bare_programs import canned_model, run_bare
from benchmarks.workers.ours_remote import opened, require_one_chain, run_round
from benchmarks.workers.program_round import program, run_programs
from loopwright.errors import BenchError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

SMALL = Remote("small", "for a test", programs=3, turns=5, at_once=2)


async def test_every_program_is_one_chain_of_all_its_turns(tmp_path: Path) -> None:
    spec = SMALL.prepare(tmp_path, Places(tmp_path, tmp_path)).ours
    async with opened(spec) as worker:
        rollouts, facts = await run_round(spec, worker)
    assert sorted(rollout.key.draw for rollout in rollouts) == [0, 1, 2]
    for rollout in rollouts:
        require_one_chain(rollout, 5)
    assert 1 <= facts["processes"] <= 2
    assert facts["driver_cpu_seconds"] > 0
    with pytest.raises(BenchError, match=r"chains of \[5\] turns"):
        require_one_chain(rollouts[0], 4)


async def test_a_program_that_fails_ends_the_benchmark(tmp_path: Path) -> None:
    spec = {**SMALL.prepare(tmp_path, Places(tmp_path, tmp_path)).ours, "turns": "many", "programs": 1}
    async with opened(spec) as worker:
        (rollout,), _ = await run_round(spec, worker)
    with pytest.raises(BenchError, match="NoModelCallError"):
        require_one_chain(rollout, 5)


async def test_the_bare_programs_talk_to_the_canned_model() -> None:
    async with canned_model("19") as base_url:
        facts = await run_programs(3, 2, lambda number: run_bare(program(5, "?"), base_url))
        with pytest.raises(RuntimeError, match="ended with 1"):
            await run_bare(program(5, "?"), base_url.removesuffix("/v1") + "nowhere")
    assert 1 <= facts["processes"] <= 2
