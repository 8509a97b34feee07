"""What a step reports of each rollout and each trained token, against the plain computation and the step's own loss."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from made_groups import Maker, group_of, learner_of, load_tiny, recipe, simple_groups, weights_of
from plain import eager_model, logprobs_of

from loopwright.learn.plan import plan_step
from loopwright.types import Group, TokenChain, TrainedRollout


def chain_of(groups: list[Group], one: TrainedRollout, index: int) -> TokenChain:
    """The chain that a report speaks of."""
    (rollout,) = [r for group in groups for r in group.rollouts if r.key == one.key]
    assert rollout.episode is not None
    return rollout.episode.chains[index]


def mixed_groups() -> list[Group]:
    """Simple groups, and one with rollouts of two chains, of which the first is only recorded in one."""
    make = Maker(5)
    groups = simple_groups(count=3)
    prompt = make.ids(9)
    recorded = make.chain(prompt, [2])
    object.__setattr__(recorded, "trained", False)
    members = [(1.0, [make.chain(prompt, [3, 2, 1]), make.chain([4, 5], [2])]), (0.0, [recorded, make.chain([7], [4])])]
    return [*groups, group_of(members, draw=3)]


@pytest.mark.parametrize("mini_batches", [1, 2, 3])
@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 4096])
def test_every_trained_token_is_told_with_its_chain(
    llama_folder: Path, mini_batches: int, micro_batch_tokens: int
) -> None:
    groups, reference = mixed_groups(), eager_model(llama_folder)
    learner = learner_of(
        load_tiny(llama_folder), lr=0.0, mini_batches=mini_batches, micro_batch_tokens=micro_batch_tokens
    )
    report = learner._step(groups)
    assert [one.key for one in report.rollouts] == [r.key for group in groups for r in group.rollouts]
    trained = [(one, chain) for one in report.rollouts for chain in one.chains]
    assert {bool(one.chains) for one in report.rollouts if one.advantage} == {True}
    assert not any(one.chains for one in report.rollouts if not one.advantage)
    assert sum(len(chain.positions) for _, chain in trained) == report.metrics["trained_tokens"]
    for one, numbers in trained:
        chain = chain_of(groups, one, numbers.index)
        assert chain.trained
        assert numbers.positions.tolist() == chain.mask.nonzero()[0].tolist()
        with torch.no_grad():
            (expected,) = logprobs_of(reference, [chain], 1.0)
        assert numbers.old_logprobs == pytest.approx(expected.numpy(), abs=1e-5)
        # The first ratio is 1, so a token's loss is advantage times importance, and its share is that times its weight.
        importance = np.minimum(np.exp(expected.numpy() - chain.logprobs[chain.mask]), 2.0)
        assert numbers.losses == pytest.approx(-one.advantage * one.token_weight * importance, rel=1e-4)
    total = sum(float(chain.losses.astype(np.float64).sum()) for _, chain in trained)
    assert total / mini_batches == pytest.approx(report.metrics["loss"], abs=1e-6)


def test_without_them_a_step_computes_the_same(llama_folder: Path) -> None:
    groups, found = mixed_groups(), []
    for told in (True, False):
        loaded = load_tiny(llama_folder)
        report = learner_of(loaded, token_numbers=told, mini_batches=2)._step(groups)
        found.append((report, weights_of(loaded.model)))
    (report, weights), (plain, others) = found
    assert plain.metrics == report.metrics
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert not any(one.chains for one in plain.rollouts)
    assert [(one.key, one.advantage, one.token_weight) for one in plain.rollouts] == [
        (one.key, one.advantage, one.token_weight) for one in report.rollouts
    ]


def test_a_plan_that_was_sent_elsewhere_computes_the_same(llama_folder: Path) -> None:
    found = []
    for sent in (False, True):
        loaded = load_tiny(llama_folder)
        learner = learner_of(loaded, mini_batches=2)
        plan = plan_step(recipe(mini_batches=2), mixed_groups(), 1)
        numbers = learner._executor.run(pickle.loads(pickle.dumps(plan)) if sent else plan)
        found.append((numbers, weights_of(loaded.model)))
    (numbers, weights), (again, others) = found
    assert numbers.meter.metrics() == again.meter.metrics()
    assert numbers.chains == again.chains
    assert all(torch.equal(weights[name], others[name]) for name in weights)
