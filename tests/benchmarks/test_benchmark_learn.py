"""The benchmarks of train steps: all sides learn from the same tokens, and memory is that of each process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learn import FIRST, Learn
from benchmarks.learn_ranks import LearnRanks
from benchmarks.models import Model
from benchmarks.setting import Places
from benchmarks.workers.ours_learn import until_out_of_memory
from benchmarks.workers.ours_learn_ranks import measured, opened
from benchmarks.workers.port import Port, Stopwatch
from benchmarks.workers.trl_learn import Steps
from loopwright.errors import LearnerError
from loopwright.testing.made_groups import ANSWERS, row_of

LENGTHS = (64, 128)
TINY = Learn("tiny", "for a test", model=Model.TINY, lengths=LENGTHS)


class ScriptedPort(Port):
    """A harness that wants so many rounds, and keeps what it is told."""

    def __init__(self, spec: dict[str, Any], rounds: int) -> None:
        self.spec = spec
        self.told: list[dict[str, Any]] = []
        self._rounds = rounds

    def ready(self, *packages: str) -> None:
        self.told.append({"ready": packages})

    def rounds(self) -> Iterator[Stopwatch]:
        for _ in range(self._rounds):
            yield Stopwatch()

    def answer(self, taken: dict[str, float], **facts: Any) -> None:
        self.told.append(facts)


def test_the_peer_is_told_the_tokens_of_our_group(tmp_path: Path) -> None:
    prepared = TINY.prepare(tmp_path, Places(tmp_path, tmp_path))
    ((_, at_once),) = prepared.others
    assert (prepared.peer["peer_micro_batch"], at_once["peer_micro_batch"]) == (1, ANSWERS)
    assert [row["tokens"] for row in at_once["rows"]] == [FIRST, *LENGTHS]
    vocabulary = json.loads((Path(prepared.ours["model"]) / "config.json").read_text())["vocab_size"]
    row, group = at_once["rows"][-1], row_of(LENGTHS[-1], vocabulary=vocabulary)
    chains = [rollout.episode.chains[0].ids.tolist() for rollout in group.rollouts if rollout.episode is not None]
    assert [row["prompt"] + answer for answer in row["answers"]] == chains
    assert sum(row["advantages"]) == pytest.approx(0)


def test_adapters_are_compared_with_all_weights(tmp_path: Path) -> None:
    adapters = Learn("tiny", "for a test", model=Model.TINY, lengths=LENGTHS, adapter_rank=4)
    prepared = adapters.prepare(tmp_path, Places(tmp_path, tmp_path))
    assert (prepared.ours["adapter_rank"], prepared.peer["adapter_rank"]) == (4, 0)
    assert (adapters.peer.module, prepared.others) == (adapters.module, ())


def test_the_trainer_makes_a_first_step_and_tries_no_longer_row_than_the_one_that_did_not_fit() -> None:
    rows = [{"tokens": tokens} for tokens in (FIRST, *LENGTHS, 256)]
    port = ScriptedPort({"rows": rows}, rounds=2)
    made: list[int] = []
    with pytest.raises(SystemExit):
        train(Steps(port), made, fits=LENGTHS[0])
    assert made == [FIRST, *LENGTHS, *LENGTHS]
    ready, *answers = port.told
    assert "ready" in ready
    assert [[step["tokens"] for step in answer["steps"]] for answer in answers] == [[64], [64]]
    assert answers[0]["resident"] > 0


def train(steps: Steps, made: list[int], *, fits: int) -> None:
    """What TRL's trainer does, without end."""
    while True:
        steps.begin()
        made.append(steps.now.row["tokens"])
        steps.now.ran_out = steps.now.row["tokens"] > fits
        steps.now.end()


def test_only_running_out_of_memory_ends_a_round_early() -> None:
    with until_out_of_memory():
        fail("out of memory on the CPU in a micro-batch of 8,192 tokens")
    with pytest.raises(LearnerError), until_out_of_memory():
        fail("the gradient's norm is nan")


def fail(words: str) -> None:
    raise LearnerError(words, remedy="for a test")


@pytest.mark.real
@pytest.mark.parametrize("ranks", [1, 2])
async def test_the_memory_of_a_step_is_that_of_each_process_that_computes(tmp_path: Path, ranks: int) -> None:
    benchmark = LearnRanks("tiny", "for a test", model=Model.TINY, ranks=ranks, lengths=LENGTHS)
    spec = benchmark.prepare(tmp_path, Places(tmp_path, tmp_path)).ours
    async with opened(spec) as learner:
        assert len(learner.processes) == ranks
        group = row_of(LENGTHS[-1], vocabulary=learner.vocabulary)
        step = await measured(learner, group, [0] * ranks, LENGTHS[-1])
    assert len(step["bytes"]) == ranks
    assert min(step["bytes"]) > 0
    assert (step["communication_share"] > 0) == (ranks > 1)
