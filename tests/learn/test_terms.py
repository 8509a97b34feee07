"""The loss of a train step with all its terms, against padded rows and against finite differences of the real model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_groups import Maker, group_of, laid_out, learner_of, load_tiny, micros_of, simple_groups, weights_of
from plain import Row, difference, eager_model, gradients, logprobs_of, rows_of

from loopwright.core.advantage import ADVANTAGES, Scores
from loopwright.learn.body import Body, body_of
from loopwright.learn.execute import Micro, StepNumbers
from loopwright.learn.importance import Importance
from loopwright.learn.kl import KlTerm
from loopwright.learn.learner import TorchLearner
from loopwright.learn.losses import Clip, TokenLoss, cispo, gspo, ppo_clip, reinforce
from loopwright.learn.plan import MiniBatch, row_of_chain
from loopwright.learn.sft import Example, SftTerm
from loopwright.models.load import LoadedModel
from loopwright.testing.tiny import tiny_llama
from loopwright.types import Aggregate, Group, ImportanceKind, KlKind, Level, TokenChain

BOUNDS: dict[str, Any] = {"clip_low": 0.01, "clip_high": 0.02}
LOSSES: dict[str, TokenLoss] = {
    "ppo_clip": partial(ppo_clip, **BOUNDS),
    "gspo": partial(gspo, **BOUNDS),
    "cispo": partial(cispo, **BOUNDS),
    "reinforce": reinforce,
}
LaidOut = Sequence[tuple[MiniBatch, list[Micro]]]
KL, SFT, TEMPERATURE = 0.3, 0.4, 0.7


@pytest.fixture
def loaded(llama_folder: Path) -> LoadedModel:
    return load_tiny(llama_folder)


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A reference that is not the policy."""
    return tiny_llama(tmp_path_factory.mktemp("other"), initializer_range=0.15)


def kl_term(folder: Path, kind: KlKind = KlKind.K3) -> KlTerm:
    return KlTerm(kind, KL, frozen(folder))


def frozen(folder: Path) -> Body:
    reference = load_tiny(folder)
    reference.model.requires_grad_(False)
    return body_of(reference)


def sft_term(count: int = 5, per_step: int = 2, seed: int = 3) -> SftTerm:
    """Examples of different lengths, also of a single answer token."""
    make = Maker(seed)
    examples = tuple(Example.of(make.ids(3 + i % 4), make.ids(1 + 2 * i)) for i in range(count))
    return SftTerm(examples, SFT, per_step, seed)


def as_chain(example: Example) -> TokenChain:
    """For the plain reference alone, which reads ids and mask."""
    return TokenChain(example.ids, example.mask, np.zeros(len(example.ids), np.float32), np.where(example.mask, 0, -1))


def grads_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def moved(model: Any, by: float = 0.01) -> None:
    """Another policy, near the old one."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=by)


def evaluate(learner: TorchLearner, batches: LaidOut, examples: Sequence[Example]) -> dict[str, float]:
    """Loss and metrics of laid-out mini-batches at the weights as they are now; leaves their gradients."""
    numbers = StepNumbers()
    learner._optimizer.zero_grad()
    for batch, micros in batches:
        for micro in micros:
            learner._executor.learn_from(micro, batch, 1, numbers)
    # All examples as those of one mini-batch.
    alone = tuple((row_of_chain(i, int(one.mask.argmax()), len(one.ids)),) for i, one in enumerate(examples))
    learner._executor.imitate(MiniBatch((), (), tuple(examples), alone, len(examples)), numbers.meter)
    return numbers.meter.metrics()


def plain_loss(
    now: Any, old: Any, reference: Any, groups: list[Group], name: str, examples: Sequence[Example]
) -> torch.Tensor:
    """All terms, from padded rows, chain by chain. Each of the two mini-batches has a mean of its own."""
    total = torch.zeros(())
    rows = [row for part in (groups[0::2], groups[1::2]) for row in rows_of(part, Aggregate.SEQUENCE)]
    chains = [row.chain for row in rows]
    with torch.no_grad():
        before, held = (logprobs_of(model, chains, TEMPERATURE) for model in (old, reference))
    for row, new, was, ref in zip(rows, logprobs_of(now, chains, TEMPERATURE), before, held, strict=True):
        sampled = torch.tensor(row.chain.logprobs[row.chain.mask])
        weight = torch.exp((was - sampled).sum()).clamp(max=2.0)
        drift = torch.exp(ref - new) - 1 - (ref - new)
        total = total + row.weight * (weight * plain_policy(name, row, new, was) + KL * drift).sum()
    likelihoods = logprobs_of(now, [as_chain(example) for example in examples], 1.0)
    return total - SFT * torch.stack([values.mean() for values in likelihoods]).mean()


def plain_policy(name: str, row: Row, new: torch.Tensor, was: torch.Tensor) -> torch.Tensor:
    token_ratio, low, high = torch.exp(new - was), 1 - BOUNDS["clip_low"], 1 + BOUNDS["clip_high"]
    match name:
        case "reinforce":
            return -row.advantage * new
        case "cispo":
            return -row.advantage * token_ratio.detach().clip(low, high) * new
        case "gspo":
            ratio = torch.exp((new - was).mean()).expand(len(new))
        case _:
            ratio = token_ratio
    return -torch.min(ratio * row.advantage, ratio.clip(low, high) * row.advantage)


def with_all_terms(loaded: LoadedModel, reference: Path, sft: SftTerm, name: str, **more: Any) -> TorchLearner:
    return learner_of(
        loaded,
        loss=LOSSES[name],
        kl=kl_term(reference),
        sft=sft,
        # One weight per chain: with several, GSPO's tokens have no common function to differentiate.
        importance=Importance(level=Level.SEQUENCE),
        mini_batches=2,
        **more,
    )


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("micro_batch_tokens", [1, 4096])
def test_all_terms_packed_equal_all_terms_padded(
    loaded: LoadedModel, llama_folder: Path, other_folder: Path, name: str, micro_batch_tokens: int
) -> None:
    groups, sft = simple_groups(count=4), sft_term()
    learner = with_all_terms(
        loaded, other_folder, sft, name, temperature=TEMPERATURE, micro_batch_tokens=micro_batch_tokens
    )
    batches = laid_out(learner, groups)
    moved(loaded.model)
    found = evaluate(learner, batches, sft.at(1))

    now, old, reference = eager_model(llama_folder), eager_model(llama_folder), eager_model(other_folder)
    moved(now)
    expected = plain_loss(now, old, reference, groups, name, sft.at(1))
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    assert difference(grads_of(loaded.model), gradients(now, expected)) < 1e-4


@pytest.mark.parametrize("name", ["gspo", "ppo_clip"])
def test_the_gradient_of_all_terms_is_that_of_finite_differences(
    loaded: LoadedModel, other_folder: Path, name: str
) -> None:
    """Along the gradient itself, where the slope is its norm. Tokens on both sides of the clip are among them."""
    groups, sft = simple_groups(count=4), sft_term()
    learner = with_all_terms(loaded, other_folder, sft, name, clip=Clip(0.01, 0.02, Level.SEQUENCE))
    batches, examples = laid_out(learner, groups), sft.at(1)
    moved(loaded.model)
    metrics = evaluate(learner, batches, examples)
    assert 0 < metrics["clipped_low"] + metrics["clipped_high"] < 1
    slopes, here = grads_of(loaded.model), weights_of(loaded.model)
    norm = math.sqrt(sum(float(slope.double().square().sum()) for slope in slopes.values()))
    step, values = 2e-3, []
    for sign in (1, -1):
        with torch.no_grad():
            for parameter_name, parameter in loaded.model.named_parameters():
                parameter.copy_(here[parameter_name] + sign * step * slopes[parameter_name] / norm)
        values.append(evaluate(learner, batches, examples)["loss"])
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(norm, rel=1e-2)


@pytest.mark.parametrize("name", LOSSES)
def test_a_rollout_of_ten_chains_weighs_as_one(loaded: LoadedModel, other_folder: Path, name: str) -> None:
    """T6: the same chain ten times in one rollout changes neither loss nor gradient."""
    make = Maker(4)
    prompt = make.ids(6)
    good, bad = make.chain(prompt, [4]), make.chain(prompt, [3])
    found = []
    for copies in (1, 10):
        learner = learner_of(loaded, loss=LOSSES[name], kl=kl_term(other_folder), lr=0.0, max_grad_norm=None)
        report = learner._step([group_of([(1.0, [good] * copies), (0.0, [bad])])])
        found.append((report.metrics["loss"], grads_of(loaded.model)))
    (one, one_grads), (ten, ten_grads) = found
    assert ten == pytest.approx(one, rel=1e-5)
    assert difference(ten_grads, one_grads) < 1e-5


@pytest.mark.parametrize("name", LOSSES)
def test_the_first_ratio_of_every_loss_is_exactly_one(loaded: LoadedModel, name: str) -> None:
    metrics = learner_of(loaded, loss=LOSSES[name], clip=Clip(0.0, 0.0, Level.SEQUENCE))._step(simple_groups()).metrics
    assert metrics["ratio_mean"] == 1.0
    assert metrics["clipped_low"] == metrics["clipped_high"] == 0.0


def test_advantages_are_computed_once_over_all_groups(loaded: LoadedModel) -> None:
    asked: list[list[Scores]] = []

    def advantage(groups: Sequence[Scores]) -> list[tuple[float, ...]]:
        asked.append(list(groups))
        return [tuple(reward - 0.3 for reward in group.rewards) for group in groups]

    make = Maker(0)
    groups = simple_groups(count=2)
    groups.append(group_of([(1.0, [make.chain([1, 2], [2, 3, 4]), make.chain([5], [1])])], draw=2))
    learner_of(loaded, advantage=advantage, mini_batches=2)._step(groups)
    (scores,) = asked
    assert [group.rewards for group in scores] == [(1.0, 0.0, 0.5), (1.0, 0.0, 0.5), (1.0,)]
    assert [group.lengths for group in scores] == [(3, 4, 5), (3, 4, 5), (7,)]


def test_mini_batches_keep_what_the_whole_batch_says(loaded: LoadedModel) -> None:
    """Each half alone would be whitened to other numbers."""
    groups = [*simple_groups(0, count=1, rewards=(1.0, 0.9)), *simple_groups(1, count=1, rewards=(0.0, 0.1))]
    learner = learner_of(loaded, advantage=ADVANTAGES["reinforce_pp"], mini_batches=2)
    (first,), (second,) = micros_of(learner, groups)
    assert (first.credit.advantages > 0).all()
    assert (second.credit.advantages < 0).all()


def test_fewer_groups_than_mini_batches_make_no_update_of_nothing(loaded: LoadedModel) -> None:
    """A filter may leave a step with fewer; momentum alone must not move the weights."""
    learner = learner_of(loaded, mini_batches=4)
    assert len(micros_of(learner, simple_groups(count=1))) == 1
    assert len(micros_of(learner, simple_groups(count=3))) == 3


# Divergence from a reference.


def test_the_initial_policy_has_no_divergence_and_a_trained_one_has(loaded: LoadedModel, llama_folder: Path) -> None:
    learner = learner_of(loaded, kl=kl_term(llama_folder), lr=1e-2)
    drifts = [learner._step(simple_groups(step)).metrics["kl"] for step in range(3)]
    assert drifts[0] == pytest.approx(0.0, abs=1e-6)
    assert drifts[2] > drifts[0] + 1e-3


def test_the_divergence_holds_chains_without_advantage_too(loaded: LoadedModel, other_folder: Path) -> None:
    equals = simple_groups(rewards=(1.0, 1.0, 1.0))
    metrics = learner_of(loaded, kl=kl_term(other_folder), lr=0.0)._step(equals).metrics
    assert metrics["trained_tokens"] == 2 * (3 + 4 + 5)
    assert metrics["grad_norm"] > 0
    assert metrics["loss"] > 0


def test_a_strong_divergence_term_keeps_the_policy_near(llama_folder: Path) -> None:
    drifts = {}
    for coefficient in (1e-6, 30.0):
        reference = frozen(llama_folder)
        loaded = load_tiny(llama_folder)
        learner = learner_of(loaded, kl=KlTerm(KlKind.K3, coefficient, reference), lr=3e-3, steps=30)
        reports = [learner._step(simple_groups(0)) for _ in range(20)]
        drifts[coefficient] = reports[-1].metrics["kl"]
    assert drifts[30.0] < drifts[1e-6] / 5


def test_training_leaves_the_reference_alone(loaded: LoadedModel, other_folder: Path) -> None:
    reference = load_tiny(other_folder)
    before = weights_of(reference.model.requires_grad_(False))
    term = KlTerm(KlKind.K3, KL, body_of(reference))
    learner_of(loaded, kl=term, lr=1e-2)._step(simple_groups())
    assert all(torch.equal(before[name], parameter) for name, parameter in reference.model.named_parameters())
    assert all(parameter.grad is None for parameter in reference.model.parameters())


# Examples.


@given(count=st.integers(1, 9), per_step=st.integers(1, 12), seed=st.integers(0, 99))
def test_examples_come_in_epochs_and_depend_on_the_step_alone(count: int, per_step: int, seed: int) -> None:
    term = sft_term(count, per_step, seed)
    number = {id(example): index for index, example in enumerate(term.examples)}
    steps = [[number[id(example)] for example in term.at(step)] for step in range(1, 2 * count + 1)]
    assert steps == [[number[id(example)] for example in term.at(step)] for step in range(1, 2 * count + 1)]
    drawn = [index for step in steps for index in step]
    for start in range(0, len(drawn) - count + 1, count):
        assert sorted(drawn[start : start + count]) == list(range(count))


def test_examples_are_learned_without_any_rollout_that_teaches(loaded: LoadedModel) -> None:
    sft = sft_term(count=3, per_step=3)
    learner = learner_of(loaded, sft=sft, lr=1e-2, steps=100)
    equals = simple_groups(rewards=(1.0, 1.0))
    losses = [learner._step(equals).metrics["sft_loss"] for _ in range(40)]
    assert losses[-1] < losses[0] / 4


@pytest.mark.parametrize("mini_batches", [1, 2])
def test_sft_loss_by_hand(loaded: LoadedModel, llama_folder: Path, mini_batches: int) -> None:
    """The mean per example, then over examples; not scaled by its coefficient, and at temperature 1."""
    sft, plain = sft_term(per_step=4), eager_model(llama_folder)
    learner = learner_of(loaded, sft=sft, lr=0.0, temperature=TEMPERATURE, mini_batches=mini_batches)
    for step in (1, 2, 3):
        metrics = learner._step(simple_groups(rewards=(1.0, 1.0))).metrics
        with torch.no_grad():
            likelihoods = logprobs_of(plain, [as_chain(each) for each in sft.at(step)], 1.0)
        expected = -np.mean([values.mean().item() for values in likelihoods])
        assert metrics["sft_loss"] == pytest.approx(expected, rel=1e-5)
        assert metrics["loss"] == pytest.approx(SFT * expected, rel=1e-5)
        assert metrics["trained_tokens"] == 0


async def test_a_resumed_learner_goes_on_with_the_same_examples_and_reference(
    llama_folder: Path, other_folder: Path, tmp_path: Path
) -> None:
    def make() -> TorchLearner:
        return learner_of(load_tiny(llama_folder), sft=sft_term(), kl=kl_term(other_folder), lr=1e-3)

    straight = make()
    for step in range(2):
        straight._step(simple_groups(step))
    straight._save(tmp_path)
    resumed = make()
    with resumed._compute:
        await resumed.load(tmp_path)
    for step in range(2, 4):
        assert resumed._step(simple_groups(step)) == straight._step(simple_groups(step))


# Metrics.


@pytest.mark.parametrize(("kind", "mean"), [(ImportanceKind.MASK, None), (ImportanceKind.OFF, 1.0)])
def test_importance_metrics(loaded: LoadedModel, llama_folder: Path, kind: ImportanceKind, mean: float | None) -> None:
    groups = simple_groups()
    chains = [row.chain for row in rows_of(groups, Aggregate.SEQUENCE) if row.advantage]
    with torch.no_grad():
        old = torch.cat(logprobs_of(eager_model(llama_folder), chains, 1.0))
    weights = (old - torch.cat([torch.tensor(chain.logprobs[chain.mask]) for chain in chains])).exp()
    outside = weights > 2.0
    assert 0 < outside.sum() < len(outside)
    metrics = learner_of(loaded, importance=Importance(kind))._step(groups).metrics
    if mean is None:
        assert metrics["importance_mean"] == pytest.approx(weights.masked_fill(outside, 0.0).mean().item(), rel=1e-5)
        assert metrics["importance_outside"] == pytest.approx(outside.float().mean().item())
    else:
        assert (metrics["importance_mean"], metrics["importance_outside"]) == (mean, 0.0)


def test_tokens_that_the_clip_holds_are_counted_by_side(loaded: LoadedModel, llama_folder: Path) -> None:
    groups = simple_groups(count=4)
    learner = learner_of(loaded, clip=Clip(0.01, 0.02), mini_batches=2)
    batches = laid_out(learner, groups)
    moved(loaded.model)
    metrics = evaluate(learner, batches, ())

    now, old = eager_model(llama_folder), eager_model(llama_folder)
    moved(now)
    rows = [row for row in rows_of(groups, Aggregate.SEQUENCE) if row.advantage]
    with torch.no_grad():
        news, was = (logprobs_of(model, [row.chain for row in rows], 1.0) for model in (now, old))
    ratios = [(row.advantage, ratio) for row, n, w in zip(rows, news, was, strict=True) for ratio in (n - w).exp()]
    low = np.mean([advantage < 0 and bool(ratio < 0.99) for advantage, ratio in ratios])
    high = np.mean([advantage > 0 and bool(ratio > 1.02) for advantage, ratio in ratios])
    assert low > 0 < high
    assert (metrics["clipped_low"], metrics["clipped_high"]) == pytest.approx((low, high))
