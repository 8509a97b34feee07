"""A step's plan cut into the parts of ranks: every token once, the same weights, and equally many passes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_groups import learner_of, load_tiny, random_groups, recipe, simple_groups

from loopwright.core.packing import Packed
from loopwright.learn.execute import StepNumbers
from loopwright.learn.plan import StepPlan, plan_step
from loopwright.learn.ranks.cut import RowCost, cut_plan
from loopwright.learn.sft import Example, SftTerm
from loopwright.types import Group

COST = RowCost(per_token=100.0, per_pair=1.0)
EXAMPLES = SftTerm(tuple(Example.of([1, 2], [3] * n) for n in range(1, 6)), 0.5, examples_per_step=3, seed=0)


def chains_of(plan: StepPlan) -> list[Counter[tuple[object, ...]]]:
    """What each mini-batch trains: chains with their weights, by where they come from."""
    return [
        Counter(
            (one.rollout, one.index, one.advantage, one.weight, len(one.chain))
            for rows in batch.rollouts
            for row in rows
            for one in (batch.samples[index] for index in row.chains)
        )
        for batch in plan.mini_batches
    ]


def examples_of(plan: StepPlan) -> list[Counter[int]]:
    return [
        Counter(id(batch.examples[index]) for rows in batch.imitation for row in rows for index in row.chains)
        for batch in plan.mini_batches
    ]


@given(st.lists(random_groups(), min_size=1, max_size=2), st.integers(1, 5), st.sampled_from([1, 2]), st.booleans())
def test_the_parts_are_the_whole_and_pass_through_the_model_equally_often(
    drawn: list[list[Group]], ranks: int, mini_batches: int, sft: bool
) -> None:
    groups = [group for some in drawn for group in some]
    own = recipe(mini_batches=mini_batches, sft=EXAMPLES if sft else None)
    plan = plan_step(own, groups, 1)
    parts = cut_plan(plan, ranks, COST, max_tokens=40)
    whole = chains_of(plan)
    for number, wanted in enumerate(whole):
        assert sum((chains_of(part)[number] for part in parts), Counter()) == wanted
        assert sum((examples_of(part)[number] for part in parts), Counter()) == examples_of(plan)[number]
        batches = [part.mini_batches[number] for part in parts]
        assert len({len(batch.rollouts) + batch.idle_rollouts for batch in batches}) == 1
        assert len({len(batch.imitation) + batch.idle_imitation for batch in batches}) == 1
        assert min((batch.idle_rollouts for batch in batches), default=0) == 0
        for batch in batches:
            assert batch.example_count == plan.mini_batches[number].example_count
            assert {index for rows in batch.rollouts for row in rows for index in row.chains} == set(
                range(len(batch.samples))
            )


def test_a_prompt_stays_with_its_answers_unless_one_rank_would_have_most_of_the_work() -> None:
    plan = plan_step(recipe(), simple_groups(count=4), 1)
    for part in cut_plan(plan, 2, COST, max_tokens=4096):
        rows = [row for batch in part.mini_batches for rows in batch.rollouts for row in rows]
        assert [len(row.chains) for row in rows] == [2, 2]


def test_one_group_is_shared_by_all_ranks() -> None:
    plan = plan_step(recipe(), simple_groups(count=1, rewards=(1.0, 0.0, 0.5, 0.2)), 1)
    samples = [len(part.mini_batches[0].samples) for part in cut_plan(plan, 2, COST, max_tokens=4096)]
    assert samples == [2, 2]


def test_a_rank_without_work_goes_through_the_model_with_the_others() -> None:
    plan = plan_step(recipe(), simple_groups(count=1, rewards=(1.0, 0.0)), 1)
    idle = [part.mini_batches[0].idle_rollouts for part in cut_plan(plan, 3, COST, max_tokens=4096)]
    assert idle == [0, 0, 1]


def test_a_long_chain_costs_more_than_short_ones_of_as_many_tokens() -> None:
    one, many = Packed(0, (0,), (1000,)), Packed(0, tuple(range(10)), (100,) * 10)
    assert COST.of(one) > COST.of(many) > 1000 * COST.per_token


def test_a_rank_gets_its_own_samples_only() -> None:
    plan = plan_step(recipe(), simple_groups(count=4), 1)
    parts = cut_plan(plan, 2, COST, max_tokens=4096)
    keys = [{one.rollout for batch in part.mini_batches for one in batch.samples} for part in parts]
    assert keys[0].isdisjoint(keys[1])
    assert [part.rollouts for part in parts] == [(), ()]


def test_what_ranks_measure_adds_up_to_what_one_process_measures(llama_folder: Path) -> None:
    loaded = load_tiny(llama_folder)
    learner = learner_of(loaded, sft=EXAMPLES)
    plan = plan_step(learner._recipe, simple_groups(count=4), 1)
    numbers = []
    for part in (plan, *cut_plan(plan, 2, COST, max_tokens=40)):
        batch, found = part.mini_batches[0], StepNumbers()
        for micro in learner._executor.lay_out(batch):
            learner._executor.learn_from(micro, batch, 1, found)
        learner._executor.imitate(batch, found.meter)
        found.meter.grad_norm(1.0)
        numbers.append(found)
    whole, first, second = numbers
    first.add(second)
    assert first.meter.metrics() == pytest.approx(whole.meter.metrics(), abs=1e-5)
    assert {key: sorted(chain.index for chain in chains) for key, chains in first.chains.items()} == {
        key: sorted(chain.index for chain in chains) for key, chains in whole.chains.items()
    }
