"""From groups to tensors: every trained token finds its own logits, and chains keep their tokens and positions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from made_groups import Maker, group_of, random_groups

from loopwright.core.advantage import grpo
from loopwright.core.packing import pack
from loopwright.core.weighting import token_weights
from loopwright.errors import ChainError
from loopwright.learn.samples import Sample, credit_of, judged_rollouts, samples_of, scores_of, tensors_of
from loopwright.types import Aggregate, Group, RolloutKey, TokenChain

BOUNDED = settings(max_examples=40, deadline=None, derandomize=True)
CPU = torch.device("cpu")


def samples(groups: list[Group], aggregate: Aggregate = Aggregate.SEQUENCE, *, idle: bool = False) -> list[Sample]:
    """As a learner with GRPO makes them."""
    judged = [(group, grpo(scores_of(group))) for group in groups]
    weigh = partial(token_weights, aggregate=aggregate, constant_length=7)
    return samples_of(judged_rollouts(judged, weigh), idle=idle)


@BOUNDED
@given(random_groups())
def test_a_packed_row_gives_back_each_chain_and_the_logits_of_its_targets(groups: list[Group]) -> None:
    made = samples(groups)
    if not made:
        return
    members = [[i for i, s in enumerate(made) if s.group == g] for g in range(len(groups))]
    rows = pack(members, [s.chain for s in made])
    data, credit = tensors_of(rows, [s.chain for s in made], CPU), credit_of(rows, made, CPU)
    start = target = number = 0
    for row in rows:
        rest_start = start + row.prefix
        for index, rest in zip(row.chains, row.rests, strict=True):
            sample, chain = made[index], made[index].chain
            where = [*range(start, start + row.prefix), *range(rest_start, rest_start + rest)]
            assert data.ids[where].tolist() == chain.ids[:-1].tolist()
            assert data.positions[where].tolist() == list(range(len(chain) - 1))
            trained = chain.mask.nonzero()[0]
            here = slice(target, target + len(trained))
            before = data.logit_positions[data.logit_of_target[here]]
            assert before.tolist() == [where[at - 1] for at in trained]
            assert data.targets[here].tolist() == chain.ids[trained].tolist()
            assert credit.sampled_logprobs[here].tolist() == chain.logprobs[trained].tolist()
            assert credit.advantages[here].tolist() == [np.float32(sample.advantage)] * len(trained)
            assert credit.weights[here].tolist() == [np.float32(sample.weight)] * len(trained)
            assert credit.sequence[here].tolist() == [number] * len(trained)
            rest_start += rest
            target += len(trained)
            number += 1
        start += row.tokens
    assert (start, target) == (len(data.ids), len(data.targets))
    assert len(data.logit_positions) == len(set(data.logit_positions.tolist())), "no logits are computed twice"


def test_the_advantage_is_the_rollouts_and_chains_share_its_weight() -> None:
    """T6: a rollout of two chains weighs as much as one of one."""
    make = Maker(0)
    one, two = [make.chain([1, 2], [4])], [make.chain([1, 2], [1]), make.chain([3], [2, 1, 1])]
    made = samples([group_of([(1.0, one), (0.0, two)])])
    assert [s.weight for s in made] == [1 / 8] * 3
    assert made[0].advantage > 0 > made[1].advantage == made[2].advantage


@pytest.mark.parametrize("aggregate", Aggregate)
def test_chains_that_are_only_recorded_change_nothing(aggregate: Aggregate) -> None:
    """T6: neither what is trained nor what it weighs."""
    make = Maker(0)
    main, other = make.chain([1, 2], [4]), make.chain([1, 2], [3])
    recorded = [replace(make.chain([9], [size]), trained=False) for size in (5, 7)]
    alone = samples([group_of([(1.0, [main]), (0.0, [other])])], aggregate)
    beside = samples([group_of([(1.0, [recorded[0], main, recorded[1]]), (0.0, [other])])], aggregate)
    assert [replace(one, index=0) for one in beside] == alone
    assert beside[0].index == 1, "its place in the episode"
    assert scores_of(group_of([(1.0, [main, *recorded])])) == scores_of(group_of([(1.0, [main])]))


def test_chains_that_teach_nothing_are_left_out_but_counted() -> None:
    make = Maker(0)
    chains = [make.chain([1, 2], [3]) for _ in range(3)]
    group = group_of([(reward, [chain]) for reward, chain in zip((1.0, 0.5, 0.0), chains, strict=True)])
    equals = group_of([(1.0, [make.chain([5], [3])]), (1.0, [make.chain([5], [3])])])
    made = samples([group, equals], Aggregate.TOKEN)
    assert [s.chain for s in made] == [chains[0], chains[2]]
    assert [s.weight for s in made] == [1 / 15] * 2
    everything = samples([group, equals], Aggregate.TOKEN, idle=True)
    assert [s.advantage == 0 for s in everything] == [False, True, False, True, True]
    assert [s.weight for s in everything] == [1 / 15] * 5


def test_a_chain_of_context_alone_is_left_out() -> None:
    make = Maker(0)
    group = group_of([(1.0, [make.chain([1, 2, 3], []), make.chain([1], [2])]), (0.0, [make.chain([1], [2])])])
    assert [s.chain.sampled for s in samples([group])] == [2, 2]


def test_a_first_token_that_nothing_predicts_is_refused() -> None:
    chain = TokenChain(np.array([1, 2]), np.array([True, True]), np.array([-1.0, -1.0]), np.array([0, 0]))
    with pytest.raises(ChainError, match="begins with a sampled token"):
        Sample(chain, 0, 1.0, 1.0, RolloutKey("adding", 0, 0), 0)
