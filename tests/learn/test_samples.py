"""From groups to tensors: every trained token finds its own logits, and chains keep their tokens and positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from made_groups import Maker, group_of, random_groups

from loopwright.core.advantage import grpo
from loopwright.core.packing import pack
from loopwright.errors import ChainError
from loopwright.learn.samples import Sample, samples_of, tensors_of
from loopwright.types import Aggregate, Group, TokenChain

BOUNDED = settings(max_examples=40, deadline=None, derandomize=True)
CPU = torch.device("cpu")


@BOUNDED
@given(random_groups())
def test_a_packed_row_gives_back_each_chain_and_the_logits_of_its_targets(groups: list[Group]) -> None:
    samples = samples_of(groups, grpo, Aggregate.SEQUENCE)
    if not samples:
        return
    members = [[i for i, s in enumerate(samples) if s.group == g] for g in range(len(groups))]
    rows = pack(members, [s.chain for s in samples])
    data = tensors_of(rows, samples, CPU)
    start = target = 0
    for row in rows:
        rest_start = start + row.prefix
        for index, rest in zip(row.chains, row.rests, strict=True):
            sample, chain = samples[index], samples[index].chain
            where = [*range(start, start + row.prefix), *range(rest_start, rest_start + rest)]
            assert data.ids[where].tolist() == chain.ids[:-1].tolist()
            assert data.positions[where].tolist() == list(range(len(chain) - 1))
            trained = chain.mask.nonzero()[0]
            here = slice(target, target + len(trained))
            before = data.logit_positions[data.logit_of_target[here]]
            assert before.tolist() == [where[at - 1] for at in trained]
            assert data.targets[here].tolist() == chain.ids[trained].tolist()
            assert data.sampled_logprobs[here].tolist() == chain.logprobs[trained].tolist()
            assert data.advantages[here].tolist() == [np.float32(sample.advantage)] * len(trained)
            assert data.weights[here].tolist() == [np.float32(sample.weight)] * len(trained)
            rest_start += rest
            target += len(trained)
        start += row.tokens
    assert (start, target) == (len(data.ids), len(data.targets))
    assert len(data.logit_positions) == len(set(data.logit_positions.tolist())), "no logits are computed twice"


def test_the_advantage_is_the_rollouts_and_chains_share_its_weight() -> None:
    """T6: a rollout of two chains weighs as much as one of one."""
    make = Maker(0)
    one, two = [make.chain([1, 2], [4])], [make.chain([1, 2], [1]), make.chain([3], [2, 1, 1])]
    samples = samples_of([group_of([(1.0, one), (0.0, two)])], grpo, Aggregate.SEQUENCE)
    assert [s.weight for s in samples] == [1 / 8] * 3
    assert samples[0].advantage > 0 > samples[1].advantage == samples[2].advantage


def test_chains_that_teach_nothing_are_left_out_but_counted() -> None:
    make = Maker(0)
    chains = [make.chain([1, 2], [3]) for _ in range(3)]
    group = group_of([(reward, [chain]) for reward, chain in zip((1.0, 0.5, 0.0), chains, strict=True)])
    equals = group_of([(1.0, [make.chain([5], [3])]), (1.0, [make.chain([5], [3])])])
    samples = samples_of([group, equals], grpo, Aggregate.TOKEN)
    assert [s.chain for s in samples] == [chains[0], chains[2]]
    assert [s.weight for s in samples] == [1 / 15] * 2


def test_a_chain_of_context_alone_is_left_out() -> None:
    make = Maker(0)
    group = group_of([(1.0, [make.chain([1, 2, 3], []), make.chain([1], [2])]), (0.0, [make.chain([1], [2])])])
    assert [s.chain.sampled for s in samples_of([group], grpo, Aggregate.SEQUENCE)] == [2, 2]


def test_a_first_token_that_nothing_predicts_is_refused() -> None:
    chain = TokenChain(np.array([1, 2]), np.array([True, True]), np.array([-1.0, -1.0]), np.array([0, 0]))
    with pytest.raises(ChainError, match="begins with a sampled token"):
        Sample(chain, 0, 1.0, 1.0)
