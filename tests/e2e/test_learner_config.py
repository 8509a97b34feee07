"""The learner's terms from the config to a trained model: every kind runs, and a resumed run keeps them."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from loopwright.build import open_run
from loopwright.cli import main
from loopwright.config import load
from loopwright.errors import ConfigError, DataError, LearnerError, ModelError
from loopwright.learn.learner import TorchLearner
from loopwright.models.load import load_model
from loopwright.runs.run_folder import RunFolder
from loopwright.testing.tiny import tiny_llama
from loopwright.track.jsonl import read_jsonl

WriteConfig = Callable[..., Path]
EXAMPLES = Path(__file__).parents[2] / "examples"
ADVANTAGES: list[Any] = [
    "grpo_no_std",
    "rloo",
    "opo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    {"kind": "pass_at_k", "k": 2},
    {"kind": "python", "path": "custom_advantage.py:ranks", "args": {"spread": 2.0}},
]
LOSSES: list[Any] = [
    {"kind": "ppo_clip", "clip_high": 0.28, "dual_clip": 3.0, "aggregate": "constant"},
    {"kind": "gspo", "aggregate": "token"},
    "cispo",
    "reinforce",
    {"kind": "python", "path": "custom_loss.py:soft_gate", "args": {"bad": 1.2}},
]


async def run(file: Path) -> list[dict[str, Any]]:
    """Train; the metrics of every step, without the learner's prefix."""
    async with open_run(load(file, files=True), cache=file.parent, stop=asyncio.Event()) as opened:
        await opened.train()
    return steps_of(opened.folder)


def steps_of(folder: RunFolder) -> list[dict[str, Any]]:
    records = [record for record in read_jsonl(folder.metrics) if "learner/loss" in record]
    return [
        {name.removeprefix("learner/"): value for name, value in record.items() if name.startswith("learner/")}
        for record in records
    ]


@pytest.fixture
def configured(write_config: WriteConfig, tmp_path: Path) -> WriteConfig:
    """A config with the examples beside it, and without evaluation."""
    for name in ("custom_advantage.py", "custom_loss.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    (tmp_path / "answers.jsonl").write_text(
        "".join(
            json.dumps(
                {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "aeiou" * n}]}
            )
            + "\n"
            for n in range(1, 6)
        )
    )

    def write(**changes: Any) -> Path:
        return write_config(eval=None, trainer__steps=2, **changes)

    return write


@pytest.mark.parametrize("advantage", ADVANTAGES, ids=str)
async def test_every_advantage_trains(configured: WriteConfig, advantage: Any) -> None:
    steps = await run(configured(learner__advantage=advantage))
    assert len(steps) == 2
    assert all(step["grad_norm"] > 0 for step in steps)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
async def test_every_loss_trains_in_mini_batches(configured: WriteConfig, loss: Any) -> None:
    steps = await run(configured(learner__loss=loss, learner__mini_batches=2))
    assert all(step["grad_norm"] > 0 for step in steps)
    kind = loss if isinstance(loss, str) else loss["kind"]
    assert (kind in {"ppo_clip", "gspo", "cispo"}) == ("clipped_low" in steps[0])


async def test_cispo_counts_what_it_clips_whatever_the_sign_of_the_advantage(
    configured: WriteConfig, tmp_path: Path
) -> None:
    """Before the first update all losses have one gradient, so the second mini-batch of a step is the same for both."""
    shares = {}
    for kind in ("ppo_clip", "cispo"):
        loss = {"kind": kind, "clip_low": 0.0001, "clip_high": 0.0001}
        folder = str(tmp_path / kind)
        first, *_ = await run(configured(learner__loss=loss, learner__mini_batches=2, trainer__run_dir=folder))
        shares[kind] = first["clipped_low"] + first["clipped_high"]
    assert 0 < shares["ppo_clip"] < shares["cispo"] <= 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_reference_examples_and_importance_train_and_resume_bit_for_bit(
    configured: WriteConfig, tiny_model: Path, tmp_path: Path, dtype: str
) -> None:
    """Also: after a resume the reference is still the initial model, and not that of the checkpoint."""
    settings: dict[str, Any] = {
        "model__dtype": dtype,
        "learner__kl": {"kind": "k3", "coefficient": 0.1},
        "learner__sft": {"path": "answers.jsonl", "coefficient": 0.5, "examples_per_step": 2},
        "learner__importance": {"kind": "mask", "level": "sequence", "cap": 1.5, "floor": 0.5},
        "trainer__deterministic": True,
        "trainer__checkpoint_every": 1,
    }
    straight = await run(configured(**settings, trainer__run_dir=str(tmp_path / "straight")))
    assert straight[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert straight[1]["kl"] > 1e-4
    assert {"sft_loss", "importance_outside", "entropy"} <= straight[0].keys()

    broken = configured(**settings, trainer__run_dir=str(tmp_path / "broken"))
    first = load(broken, ["trainer.steps=1"])
    async with open_run(first, cache=tmp_path, stop=asyncio.Event()) as opened:
        await opened.train()
    async with open_run(load(broken), cache=tmp_path, stop=asyncio.Event()) as opened:
        assert isinstance(opened.learner, TorchLearner)
        kl = opened.learner._recipe.kl
        assert kl is not None
        assert kl.reference is not None
        assert isinstance(opened.learner, TorchLearner)
        initial = load_model(str(tiny_model), cache=tmp_path, dtype=dtype).model
        assert torch.equal(kl.reference.head, initial.get_output_embeddings().weight)
        assert not torch.equal(kl.reference.head, opened.learner._model.get_output_embeddings().weight)
        await opened.train()
    assert steps_of(opened.folder) == straight


async def test_a_reference_of_another_vocabulary_is_refused(configured: WriteConfig, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other")
    model = AutoModelForCausalLM.from_pretrained(other)
    model.resize_token_embeddings(320)
    model.save_pretrained(other)
    file = configured(learner__kl={"coefficient": 0.1, "reference": str(other)})
    with pytest.raises(ModelError, match=r"learner\.kl\.reference .* has 320 tokens"):
        await run(file)
    assert not (tmp_path / "run").exists(), "the run folder is opened after the models"


async def test_a_malformed_example_stops_the_run_before_it_starts(configured: WriteConfig, tmp_path: Path) -> None:
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write('{"messages": [{"role": "user", "content": "?"}]}\n')
    with pytest.raises(DataError, match=r"answers\.jsonl:6"):
        await run(configured(learner__sft={"path": "answers.jsonl", "coefficient": 0.5}))
    assert not (tmp_path / "run").exists()


async def test_an_example_that_does_not_fit_the_model_is_named(configured: WriteConfig) -> None:
    sft = {"path": "answers.jsonl", "coefficient": 0.5}
    with pytest.raises(DataError, match=r"answers\.jsonl:\d: the example has \d+ tokens, more than the model's 32"):
        await run(configured(learner__sft=sft, model__max_context=32))


OWN = """
limit = 3
def greedy(groups, wanted): return groups
def short(groups): return [[0.0] for _ in groups]
def near(batch): return batch.logprobs - batch.reference_logprobs
"""


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("limit", ConfigError, r"learner\.advantage\.path 'own\.py:limit' names 3, which cannot be called"),
        ("greedy", ConfigError, r"'own\.py:greedy' cannot be called with args \{\}: missing a required argument"),
        ("short", LearnerError, r"advantage 'own\.py:short' returned \[1, 1, 1\] numbers"),
    ],
)
async def test_an_advantage_that_cannot_be_used_is_named(
    configured: WriteConfig, tmp_path: Path, name: str, error: type[Exception], words: str
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(error, match=words):
        await run(configured(learner__advantage={"kind": "python", "path": f"own.py:{name}"}))


def test_the_deep_check_calls_the_users_functions(
    configured: WriteConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    terms = {
        "learner__advantage": {"kind": "python", "path": "custom_advantage.py:ranks"},
        "learner__loss": {"kind": "python", "path": "custom_loss.py:soft_gate"},
        "learner__sft": {"path": "answers.jsonl", "coefficient": 0.5},
    }
    file = configured(**terms)
    with pytest.raises(SystemExit, match="0"):
        main(["check", "--deep", str(file)])
    said = capsys.readouterr().out
    assert "advantage custom_advantage.py:ranks gives [[1.0, -1.0, 0.0], [0.0, 0.0], [0.0]]" in said
    assert "loss custom_loss.py:soft_gate gives [" in said
    assert "5 examples in answers.jsonl" in said
    with pytest.raises(SystemExit, match=r"[12]"):
        main(["check", "--deep", str(file), "learner.advantage.path=own.py:short"])
    assert "own.py:short" in capsys.readouterr().err


def test_the_deep_check_gives_a_loss_the_reference_that_the_run_will_give_it(
    configured: WriteConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    file = configured(learner__loss={"kind": "python", "path": "own.py:near"})
    with pytest.raises(SystemExit, match=r"[12]"):
        main(["check", "--deep", str(file)])
    assert "'own.py:near' raised TypeError" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["check", "--deep", str(file), "learner.kl={coefficient: 0.1}"])
    assert "loss own.py:near gives [0.5, -0.5, 0.5, -0.5]" in capsys.readouterr().out
