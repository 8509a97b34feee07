"""Two ranks compute what one process computes: gradients, logprobs, metrics and numbers per token. A real model and a
real batch are in `test_ranks_real_batch`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_groups import simple_groups
from ranked import PROBE, apart, config_of, one_process, saved_gradients, several_ranks

from loopwright.config import Loaded
from loopwright.ports.learner import StepReport
from loopwright.testing.tiny import tiny_qwen3
from loopwright.track.jsonl import read_jsonl
from loopwright.types import Group

pytestmark = pytest.mark.real

KL = {"kind": "k3", "coefficient": 0.1}
SFT = {"path": "answers.jsonl", "coefficient": 0.5, "examples_per_step": 3}

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    # Few tokens in a micro-batch, so that the ranks have different numbers of them.
    "all terms, several micro-batches": {"kl": KL, "sft": SFT, "micro_batch_tokens": 40, "loss": {"kind": "gspo"}},
    "adapters": {"lora": {"rank": 4}, "kl": KL},
    "layers computed again": {"checkpoint_activations": True, "micro_batch_tokens": 60},
}
TOLERANCE = 1e-5
HALF_TOLERANCE = 0.02
"""Of bfloat16: sums over ranks are rounded at other places than those in one process."""


@dataclass(frozen=True)
class Learned:
    """What a learner has said in five steps."""

    reports: list[StepReport]
    after_one: tuple[float, ...]
    after_all: tuple[float, ...]
    checkpoint: Path


def batch(seed: int) -> list[Group]:
    """Groups of different sizes, so that the ranks get different numbers of samples."""
    return [*simple_groups(seed, count=3), *simple_groups(seed, count=4, rewards=(1.0, 0.0, 0.5, 0.2, 0.9))[3:]]


def require_told(learner: Any, run: Path, begun: float) -> None:
    """Each rank says when it computed its part of each step, and how fast. The driver says so of the latest step."""
    spans = [one for one in read_jsonl(run / "events.jsonl") if one["name"] == "compute"]
    assert sorted((one["step"], one["who"]) for one in spans) == [(s, f"rank {r}") for s in range(1, 6) for r in (0, 1)]
    for span in spans:
        assert begun <= span["start"] <= span["end"] <= time.time()
        assert 0 <= span["facts"]["communication_seconds"] <= span["end"] - span["start"] + 0.001
    for told in learner.standing():
        span = next(one for one in spans if (one["step"], one["who"]) == (5, f"rank {told['rank']}"))
        assert told["alive"]
        pace = span["facts"]["tokens"] / (span["end"] - span["start"])
        assert told["heard"] >= span["end"] - 0.5
        assert math.isclose(told["tokens_per_second"], pace, rel_tol=1e-3)


async def learned(
    loaded: Loaded, tmp_path: Path, opened: Callable[[Loaded, Path], AbstractAsyncContextManager[Any]]
) -> Learned:
    checkpoint = tmp_path / opened.__name__
    checkpoint.mkdir()
    begun = time.time()
    async with opened(loaded, tmp_path) as learner:
        reports = [await learner.step(batch(0))]
        after_one = await learner.logprobs(PROBE)
        await learner.save(checkpoint)
        reports += [await learner.step(batch(seed)) for seed in range(1, 5)]
        if loaded.config.learner.ranks > 1:
            require_told(learner, Path(loaded.config.trainer.run_dir), begun)
        return Learned(reports, after_one, await learner.logprobs(PROBE), checkpoint)


async def both(model: Path, tmp_path: Path, **options: Any) -> tuple[Learned, Learned]:
    """What two ranks and one process have learned."""
    lines = [
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "aeiou" * n}]}
        for n in range(1, 6)
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return (
        await learned(config_of(model, tmp_path, ranks=2, **options), tmp_path, several_ranks),
        await learned(config_of(model, tmp_path, ranks=1, **options), tmp_path, one_process),
    )


def require_equal(mine: Learned, other: Learned, tolerance: float = TOLERANCE) -> None:
    gradients, expected = saved_gradients(mine.checkpoint), saved_gradients(other.checkpoint)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert apart(gradients[name], gradient) < tolerance, name
    assert np.allclose(mine.after_one, other.after_one, atol=tolerance)
    assert np.allclose(mine.after_all, other.after_all, atol=10 * tolerance)
    for report, wanted in zip(mine.reports, other.reports, strict=True):
        require_equal_reports(report, wanted, 10 * tolerance)


def require_equal_reports(report: StepReport, wanted: StepReport, tolerance: float) -> None:
    assert report.version == wanted.version
    metrics = {name: value for name, value in report.metrics.items() if not name.startswith("rank/")}
    assert metrics.keys() == wanted.metrics.keys()
    for name, value in wanted.metrics.items():
        # A share of tokens jumps when one token is on the other side of a bound.
        if not name.startswith(("clipped", "importance_outside")):
            assert math.isclose(metrics[name], value, rel_tol=tolerance, abs_tol=tolerance), name
    assert [one.key for one in report.rollouts] == [one.key for one in wanted.rollouts]
    for mine, other in zip(report.rollouts, wanted.rollouts, strict=True):
        assert (mine.advantage, mine.token_weight) == (other.advantage, other.token_weight)
        assert [chain.index for chain in mine.chains] == [chain.index for chain in other.chains]
        for one, same in zip(mine.chains, other.chains, strict=True):
            assert (one.positions == same.positions).all()
            assert np.allclose(one.old_logprobs, same.old_logprobs, atol=tolerance)
            assert np.allclose(one.losses, same.losses, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
async def test_two_ranks_equal_one_process(llama_folder: Path, tmp_path: Path, kind: str) -> None:
    mine, other = await both(llama_folder, tmp_path, **KINDS[kind])
    require_equal(mine, other)
    metrics = mine.reports[-1].metrics
    for rank in range(2):
        assert 0 < metrics[f"rank/{rank}/communication_share"] < 1
        assert metrics[f"rank/{rank}/tokens_per_second"] > 0
        assert metrics[f"rank/{rank}/peak_memory_bytes"] > 2**20


async def test_two_ranks_equal_one_process_over_several_mini_batches(llama_folder: Path, tmp_path: Path) -> None:
    """The first checkpoint comes after two updates, so rounding of the first has moved the second's gradients."""
    mine, other = await both(llama_folder, tmp_path, kl=KL, sft=SFT, mini_batches=2, micro_batch_tokens=40)
    require_equal(mine, other, 10 * TOLERANCE)


async def test_two_ranks_equal_one_process_with_a_head_of_its_own_and_windows(tmp_path: Path) -> None:
    model = tiny_qwen3(
        tmp_path / "model",
        initializer_range=0.1,
        tie_word_embeddings=False,
        use_sliding_window=True,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
    )
    mine, other = await both(model, tmp_path, kl=KL)
    require_equal(mine, other)


async def test_two_ranks_in_bfloat16_equal_one_process_within_its_rounding(llama_folder: Path, tmp_path: Path) -> None:
    mine, other = await both(llama_folder, tmp_path, dtype="bfloat16")
    gradients, expected = saved_gradients(mine.checkpoint), saved_gradients(other.checkpoint)
    for name, gradient in expected.items():
        assert apart(gradients[name], gradient) < HALF_TOLERANCE, name
    assert np.allclose(mine.after_all, other.after_all, atol=HALF_TOLERANCE)


async def test_two_ranks_in_bfloat16_stay_near_full_precision_over_twenty_steps(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process does too (tests/testing/test_device_check.py)."""
    # The ranks have processes of their own: a CPU may trap instructions that it advertises, and kill whoever uses them.
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    said = {}
    for dtype in ("float32", "bfloat16"):
        async with several_ranks(config_of(llama_folder, tmp_path, ranks=2, dtype=dtype), tmp_path) as learner:
            for seed in range(20):
                await learner.step(simple_groups(seed))
            said[dtype] = np.asarray(await learner.logprobs(PROBE))
    apart_by = np.abs(said["bfloat16"] - said["float32"])
    assert 0 < apart_by.max() < HALF_TOLERANCE, apart_by


@pytest.mark.parametrize(
    ("targets", "more"),
    [("all-linear", {}), (["q_proj", "up_proj"], {"checkpoint_activations": True})],
    ids=["all targets", "two targets, layers computed again"],
)
async def test_adapters_in_bfloat16_are_float32_on_ranks_as_in_one_process(
    llama_folder: Path, tmp_path: Path, targets: str | list[str], more: dict[str, Any]
) -> None:
    """The gradients are far closer than bfloat16 rounds. What is around the adapters is rounded to it, so later steps
    are as far apart as without adapters."""
    lora = {"rank": 4, "targets": targets}
    mine, other = await both(llama_folder, tmp_path, dtype="bfloat16", lora=lora, kl=KL, micro_batch_tokens=60, **more)
    gradients, expected = saved_gradients(mine.checkpoint), saved_gradients(other.checkpoint)
    for name, gradient in expected.items():
        assert apart(gradients[name], gradient) < TOLERANCE, name
    assert np.allclose(mine.after_all, other.after_all, atol=HALF_TOLERANCE)


async def test_an_update_without_a_backward_pass_reaches_every_weight(llama_folder: Path, tmp_path: Path) -> None:
    """Groups of equal rewards have no passes, and AdamW's momentum moves the weights all the same, also those that a
    proof has gathered before."""

    async def said(opened: Callable[[Loaded, Path], AbstractAsyncContextManager[Any]], ranks: int) -> tuple[float, ...]:
        async with opened(config_of(llama_folder, tmp_path, ranks=ranks), tmp_path) as learner:
            await learner.step(simple_groups(0))
            await learner.logprobs(PROBE)
            assert (await learner.step(simple_groups(1, rewards=(1.0, 1.0)))).metrics["trained_tokens"] == 0
            found: tuple[float, ...] = await learner.logprobs(PROBE)
            return found

    assert np.allclose(await said(several_ranks, 2), await said(one_process, 1), atol=TOLERANCE)
