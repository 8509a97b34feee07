"""The learner's step: old logprobs, importance, clipping, schedule and metrics, each against a hand computation."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_groups import CAP, VOCABULARY, Maker, group_of, learner_of, load_tiny, recipe, simple_groups, weights_of
from plain import difference, eager_model, gradients, logprobs_of, loss_of, rows_of

from loopwright.errors import LearnerError
from loopwright.learn.execute import total_norm
from loopwright.learn.importance import Importance
from loopwright.learn.learner import TorchLearner
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.types import Aggregate, Group, ImportanceKind, Schedule, TokenChain

MEANS = {
    "mismatch_mean",
    "mismatch_max",
    "mismatch_kl",
    "importance_mean",
    "importance_outside",
    "ratio_mean",
    "entropy",
}


@pytest.fixture
def loaded(llama_folder: Path) -> LoadedModel:
    """A fresh model for each test, since a step changes it."""
    return load_tiny(llama_folder)


@pytest.fixture
def reference(llama_folder: Path) -> Any:
    return eager_model(llama_folder)


def trained_chains(groups: list[Group]) -> list[TokenChain]:
    """Chains with an advantage, in the order of the groups."""
    return [row.chain for row in rows_of(groups, Aggregate.SEQUENCE) if row.advantage]


def on_policy(model: Any, groups: list[Group]) -> list[Group]:
    """The same groups with the logprobs that `model` gives to their tokens."""
    made = []
    for group in groups:
        members = []
        for rollout in group.rollouts:
            assert rollout.episode is not None
            assert rollout.score is not None
            chains = []
            for chain in rollout.episode.chains:
                logprobs = np.zeros(len(chain), np.float32)
                with torch.no_grad():
                    logprobs[chain.mask] = logprobs_of(model, [chain], 1.0)[0].numpy()
                chains.append(TokenChain(chain.ids, chain.mask, logprobs, chain.versions))
            members.append((rollout.score, chains))
        made.append(group_of(members, group.draw))
    return made


async def test_a_step_makes_good_answers_likelier_and_counts_up(loaded: LoadedModel, reference: Any) -> None:
    groups = on_policy(reference, simple_groups())
    with ComputeThread() as compute:
        learner = TorchLearner(loaded, recipe(lr=1e-3), compute)
        assert learner.version == 0
        reports = [await learner.step(groups) for _ in range(3)]
    assert [report.version for report in reports] == [1, 2, 3]
    assert learner.version == 3
    loaded.model.set_attn_implementation("eager")
    for row in rows_of(groups, Aggregate.SEQUENCE):
        with torch.no_grad():
            before, after = (logprobs_of(model, [row.chain], 1.0)[0].mean() for model in (reference, loaded.model))
        assert row.advantage == 0 or (after > before) == (row.advantage > 0)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_with_one_mini_batch_the_first_ratio_is_exactly_one(loaded: LoadedModel, temperature: float) -> None:
    learner = learner_of(loaded, temperature=temperature, micro_batch_tokens=20)
    for step in range(3):
        assert learner._step(simple_groups(step, count=3)).metrics["ratio_mean"] == 1.0


def test_with_two_mini_batches_old_logprobs_are_those_before_the_first_update(
    loaded: LoadedModel, reference: Any
) -> None:
    """By hand: the second mini-batch's gradient at the weights after the first update, old logprobs from before."""
    groups = simple_groups(count=4)
    rows = rows_of(groups[1::2], Aggregate.SEQUENCE)
    with torch.no_grad():
        old = logprobs_of(reference, [row.chain for row in rows], 1.0)
    adam = torch.optim.AdamW(reference.parameters(), lr=1e-2, weight_decay=0.0)
    first = loss_of(reference, rows_of(groups[0::2], Aggregate.SEQUENCE), 1.0)
    first.backward()
    adam.step()
    second = loss_of(reference, rows, 1.0, old)
    expected = gradients(reference, second)
    at_new_weights = gradients(reference, loss_of(reference, rows, 1.0))

    report = learner_of(loaded, lr=1e-2, mini_batches=2, max_grad_norm=None)._step(groups)
    grads = {name: p.grad for name, p in loaded.model.named_parameters()}
    # Two updates lie between the two computations, so their rounding differs more than that of one.
    assert difference(grads, expected) < 1e-4
    assert difference(grads, at_new_weights) > 0.1, "the update must be large enough to tell the two apart"
    assert report.metrics["loss"] == pytest.approx((first.item() + second.item()) / 2, abs=1e-5)
    assert report.metrics["ratio_mean"] != 1.0
    assert report.version == 1, "a train step is one version, however many mini-batches it has"


def test_the_importance_weight_is_truncated_and_only_scales_the_loss(loaded: LoadedModel, reference: Any) -> None:
    groups = simple_groups()
    with torch.no_grad():
        old = torch.cat(logprobs_of(reference, trained_chains(groups), 1.0))
    sampled = torch.cat([torch.tensor(chain.logprobs[chain.mask]) for chain in trained_chains(groups)])
    expected = (old - sampled).exp().clamp(max=CAP)
    assert (expected == CAP).any()
    assert (expected < CAP).any()
    metrics = learner_of(loaded, lr=0.0)._step(groups).metrics
    assert metrics["importance_mean"] == pytest.approx(expected.mean().item(), rel=1e-5)


def test_sampled_logprobs_enter_nowhere_else(loaded: LoadedModel) -> None:
    """Without the importance weight, groups that differ only in what the sampler reported train the same."""
    honest, other = simple_groups(0), simple_groups(0)
    for group in other:
        for rollout in group.rollouts:
            assert rollout.episode is not None
            for chain in rollout.episode.chains:
                object.__setattr__(chain, "logprobs", np.where(chain.mask, -0.1, 0.0).astype(np.float32))
    found = []
    for groups in (honest, other):
        learner_of(loaded, lr=0.0, importance=Importance(ImportanceKind.OFF))._step(groups)
        found.append({name: p.grad.clone() for name, p in loaded.model.named_parameters()})
    assert difference(*found) == 0.0


def test_mismatch_metrics_by_hand(loaded: LoadedModel, reference: Any) -> None:
    groups = simple_groups()
    chains = trained_chains(groups)
    with torch.no_grad():
        old = torch.cat(logprobs_of(reference, chains, 1.0))
        logits = [reference(torch.tensor([c.ids.tolist()])).logits[0, c.mask.nonzero()[0] - 1] for c in chains]
    sampled = torch.cat([torch.tensor(chain.logprobs[chain.mask]) for chain in chains])
    entropy = torch.distributions.Categorical(logits=torch.cat(logits)).entropy().mean()
    metrics = learner_of(loaded, micro_batch_tokens=1)._step(groups).metrics
    assert metrics["mismatch_mean"] == pytest.approx((old - sampled).abs().mean().item(), rel=1e-4)
    assert metrics["mismatch_max"] == pytest.approx((old - sampled).abs().max().item(), rel=1e-4)
    assert metrics["mismatch_kl"] == pytest.approx((sampled - old).mean().item(), rel=1e-4, abs=1e-5)
    assert metrics["entropy"] == pytest.approx(entropy.item(), rel=1e-4)
    assert metrics["trained_tokens"] == len(sampled)


def test_the_mismatch_is_split_by_the_staleness_of_each_token(loaded: LoadedModel, reference: Any) -> None:
    """Also within a rollout: the second half of every chain was sampled by newer weights than the first."""
    learner, step = learner_of(loaded, micro_batch_tokens=1), 4
    learner._version = step - 1

    def aged(group: Group) -> Group:
        members = []
        for number, rollout in enumerate(group.rollouts):
            assert rollout.episode is not None
            old, new = (step - 1, step - 1) if number == 0 else (step - 3, step - 2)
            chains = []
            for chain in rollout.episode.chains:
                halves = np.where(np.cumsum(chain.mask) > chain.sampled // 2, new, old)
                chains.append(replace(chain, versions=np.where(chain.mask, halves, -1).astype(np.int32)))
            members.append(replace(rollout, episode=replace(rollout.episode, chains=tuple(chains))))
        return replace(group, rollouts=tuple(members))

    groups = [aged(group) for group in simple_groups()]
    chains = trained_chains(groups)
    with torch.no_grad():
        old = torch.cat(logprobs_of(reference, chains, 1.0))
    sampled = torch.cat([torch.tensor(chain.logprobs[chain.mask]) for chain in chains])
    ages = step - 1 - torch.cat([torch.tensor(chain.versions[chain.mask]) for chain in chains])
    metrics = learner._step(groups).metrics
    split = {name for name in metrics if "_s" in name and name.startswith("mismatch")}
    assert split == {f"mismatch_{what}_s{age}" for what in ("mean", "tokens") for age in (0, 1, 2)}
    for age in (0, 1, 2):
        apart = (old - sampled).abs()[ages == age]
        assert metrics[f"mismatch_tokens_s{age}"] == len(apart) > 0
        assert metrics[f"mismatch_mean_s{age}"] == pytest.approx(apart.mean().item(), rel=1e-4)


def test_on_policy_groups_show_no_mismatch(loaded: LoadedModel, reference: Any) -> None:
    metrics = learner_of(loaded)._step(on_policy(reference, simple_groups())).metrics
    assert metrics["mismatch_max"] < 1e-5
    assert metrics["importance_mean"] == pytest.approx(1.0, abs=1e-5)


def test_the_norm_of_a_large_table_is_right() -> None:
    """In one sum of float32 it is off by 3e-5."""
    table = torch.randn(30_000, 576, generator=torch.Generator().manual_seed(0))
    exact = float(table.double().norm())
    assert total_norm([table, torch.zeros(5)]) == pytest.approx(exact, rel=1e-6)
    assert math.isnan(total_norm([table, torch.full((2, 2), math.nan)]))


def test_gradients_are_clipped_to_the_limit_and_reported_unclipped(loaded: LoadedModel) -> None:
    groups = simple_groups()
    norms = []
    for limit in (None, 0.01):
        report = learner_of(loaded, lr=0.0, max_grad_norm=limit)._step(groups)
        norms.append((report.metrics["grad_norm"], math.hypot(*(p.grad.norm() for p in loaded.model.parameters()))))
    (free, free_after), (reported, clipped) = norms
    assert free == reported > 0.01
    assert free_after == pytest.approx(free, rel=1e-5)
    assert clipped == pytest.approx(0.01, rel=1e-3)


def test_the_schedule_is_applied(loaded: LoadedModel) -> None:
    """AdamW's first steps move each weight by about the rate, so how far they move shows which rate was used."""
    learner = learner_of(loaded, lr=1e-3, schedule=Schedule.LINEAR, warmup_steps=1, steps=5, eps=1e-12)
    groups = simple_groups()
    states, rates = [weights_of(loaded.model)], []
    for _ in range(5):
        rates.append(learner._step(groups).metrics["lr"])
        states.append(weights_of(loaded.model))
    assert rates == pytest.approx([0.5e-3, 1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
    name = "model.layers.0.mlp.up_proj.weight"
    moved = [float((after[name] - before[name]).abs().median()) for before, after in pairwise(states)]
    assert moved[0] == pytest.approx(rates[0], rel=0.05)
    assert moved[1] == pytest.approx(rates[1], rel=0.2)


def test_a_batch_without_advantage_moves_weights_by_momentum_only(loaded: LoadedModel) -> None:
    learner = learner_of(loaded, lr=1e-3)
    equals = simple_groups(rewards=(1.0, 1.0, 1.0))
    fresh = weights_of(loaded.model)
    report = learner._step(equals)
    assert report.version == 1
    assert report.metrics == {"lr": 1e-3, "loss": 0.0, "grad_norm": 0.0, "trained_tokens": 0.0}
    assert all(torch.equal(p, fresh[name]) for name, p in loaded.model.named_parameters()), "there is no momentum yet"

    assert learner._step(simple_groups()).metrics.keys() >= MEANS
    moved = weights_of(loaded.model)
    momentum = {name: learner._optimizer.state[p]["exp_avg"].clone() for name, p in loaded.model.named_parameters()}
    learner._step(equals)
    for name, parameter in loaded.model.named_parameters():
        step = parameter.detach() - moved[name]
        assert torch.isfinite(parameter).all()
        assert (step * momentum[name] <= 0).all(), "each weight goes on against its old gradient"
    assert any(not torch.equal(p, moved[name]) for name, p in loaded.model.named_parameters())


def test_a_gradient_that_is_not_finite_changes_no_weight(loaded: LoadedModel) -> None:
    learner = learner_of(loaded, loss=lambda batch: batch.logprobs * float("nan"))
    before = weights_of(loaded.model)
    with pytest.raises(LearnerError, match="step 1: the gradient's norm is nan"):
        learner._step(simple_groups())
    after = weights_of(loaded.model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert learner.version == 0


def test_more_mini_batches_than_groups_do_no_harm(loaded: LoadedModel) -> None:
    report = learner_of(loaded, mini_batches=3)._step(simple_groups(count=1))
    assert all(math.isfinite(value) for value in report.metrics.values())


def test_a_prompt_shared_by_two_turns_trains_each_turn_once(loaded: LoadedModel) -> None:
    """Sampled, context, sampled: the context between two turns is no target."""
    make = Maker(3)
    prompt = make.ids(5)
    group = group_of([(1.0, [make.chain(prompt, [2, 4, 3])]), (0.0, [make.chain(prompt, [1])])])
    assert learner_of(loaded)._step([group]).metrics["trained_tokens"] == 2 + 3 + 1
    assert max(prompt) < VOCABULARY <= loaded.model.config.vocab_size


async def test_a_trained_weight_without_a_gradient_is_an_error(loaded: LoadedModel) -> None:
    loaded.model.forgotten = torch.nn.Parameter(torch.ones(2))
    learner = learner_of(loaded)
    with pytest.raises(LearnerError, match="step 1: the backward pass gave forgotten no gradient"):
        learner._step(simple_groups())
    # A batch without signal has no backward pass, and so no gradients.
    assert learner._step(simple_groups(rewards=(1.0, 1.0))).metrics["grad_norm"] == 0
