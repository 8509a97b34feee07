"""`tools/same_numbers`: one bit that differs is found and named, and what cannot repeat is left out."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_run import make_run
from safetensors.numpy import save_file

from loopwright.errors import BenchError
from loopwright.runs.run_folder import RunFolder
from loopwright.track.jsonl import JsonlTracker
from tools.same_numbers.examples import examples
from tools.same_numbers.numbers import Numbers, differences, read_numbers

EXAMPLES = Path(__file__).parents[2] / "examples"
WEIGHTS = {"head": np.ones((2, 3), np.float32), "body": np.zeros(4, np.float32)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = make_run(tmp_path_factory.mktemp("same") / "run")
    JsonlTracker(folder.path).log(1, {"learner/loss": 0.25, "learner/grad_norm": 1.5, "time/train": 3.0})
    write_weights(folder, WEIGHTS)
    return folder


def write_weights(folder: RunFolder, weights: dict[str, np.ndarray]) -> None:
    checkpoint = folder.checkpoints / "step-000001"
    checkpoint.mkdir(parents=True, exist_ok=True)
    save_file(weights, checkpoint / "model.safetensors")
    save_file({"torch_rng": np.random.default_rng().integers(0, 255, 8)}, checkpoint / "optimizer.safetensors")


def with_stream(numbers: Numbers, key: str, stream: int, change: Callable[[np.ndarray], np.ndarray]) -> Numbers:
    streams = list(numbers.chains[key][0])
    streams[stream] = change(streams[stream])
    return replace(numbers, chains={**numbers.chains, key: (tuple(streams),)})


def test_a_folder_equals_itself_although_torchs_own_generator_differs(made: RunFolder) -> None:
    old = read_numbers(made)
    write_weights(made, dict(reversed(WEIGHTS.items())))
    assert list(differences(old, read_numbers(made))) == []
    assert len(old.chains) == 12
    assert old.sampled > 0
    assert set(old.metrics) == {"learner/loss", "learner/grad_norm", "learner/entropy", "reward/mean"}
    assert set(old.weights) == {"model/head", "model/body"}


@pytest.mark.parametrize(
    ("stream", "change", "words"),
    [
        (0, lambda ids: ids + (np.arange(len(ids)) == 3).astype(ids.dtype), "token ids: 1 of 12 differ, first"),
        (2, lambda logprobs: np.nextafter(logprobs, logprobs.dtype.type(1)), "logprobs: 1 of 12 differ, first"),
        (2, np.negative, "logprobs: 1 of 12 differ, first"),
    ],
    ids=["a token", "the last bit of a logprob", "the sign of a zero"],
)
def test_one_token_is_found(
    made: RunFolder, stream: int, change: Callable[[np.ndarray], np.ndarray], words: str
) -> None:
    numbers = read_numbers(made)
    key = sorted(numbers.chains)[4]
    (found,) = differences(numbers, with_stream(numbers, key, stream, change))
    assert found == f"{words} {key}"


def test_metrics_rewards_and_missing_rollouts_are_found(made: RunFolder) -> None:
    numbers = read_numbers(made)
    key = min(numbers.chains)
    other = replace(
        numbers,
        metrics={**numbers.metrics, "learner/grad_norm": np.nextafter(1.5, 2)},
        rewards={**numbers.rewards, key: "another"},
        chains={name: chains for name, chains in numbers.chains.items() if name != key},
    )
    found = list(differences(numbers, other))
    assert f"token ids: 1 of 12 differ, first {key}, only in the old tree" in found
    assert f"rewards: 1 of 12 differ, first {key}" in found
    assert "metrics: 1 of 4 differ, first learner/grad_norm" in found


def test_one_bit_of_a_weight_is_found(made: RunFolder) -> None:
    old = read_numbers(made)
    write_weights(made, {**WEIGHTS, "body": np.array([0, 0, -0.0, 0], np.float32)})
    (found,) = differences(old, read_numbers(made))
    write_weights(made, WEIGHTS)
    assert found == "weights: 1 of 2 differ, first model/body"


def test_a_run_without_its_step_or_its_checkpoint_is_an_error(tmp_path: Path, made: RunFolder) -> None:
    folder = make_run(tmp_path / "run")
    with pytest.raises(BenchError, match="learner/loss"):
        read_numbers(folder)
    JsonlTracker(folder.path).log(1, {"learner/loss": 0.25, "learner/grad_norm": 1.5})
    with pytest.raises(BenchError, match="no weights"):
        read_numbers(folder)


def test_what_a_filter_dropped_counts_too(made: RunFolder, tmp_path: Path) -> None:
    """Every rollout is compared, whatever became of its group."""
    folder = make_run(tmp_path / "run")
    JsonlTracker(folder.path).log(1, {"learner/loss": 0.25, "learner/grad_norm": 1.5})
    write_weights(folder, WEIGHTS)
    with closing(sqlite3.connect(folder.rollouts)) as db:
        db.execute("UPDATE groups SET status = 'filtered', step = NULL WHERE draw = 0")
        db.commit()
    assert set(read_numbers(folder).chains) == set(read_numbers(made).chains)


def test_every_example_is_compared_or_has_a_reason() -> None:
    found = dict(examples(EXAMPLES))
    assert set(found) == {file.stem for file in EXAMPLES.glob("*.yaml")}
    compared = {name for name, reason in found.items() if not reason}
    assert compared >= {"arithmetic", "composed", "gsm8k", "tools_calculator", "two_task_sets"}
    assert "callable" in found["agent_openai_tools"]
    assert "disaggregated" in found["arithmetic_async"]
    with pytest.raises(BenchError, match="no example nothing"):
        list(examples(EXAMPLES, ("nothing",)))
