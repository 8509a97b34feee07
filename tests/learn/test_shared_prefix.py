"""Packing is exact: loss and gradients equal those of separate padded rows, over random groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_groups import Maker, group_of, learner_of, load_tiny, micros_of, random_groups, simple_groups
from plain import difference, eager_model, gradients, loss_of, rows_of

from loopwright.learn import layout
from loopwright.learn.body import body_of
from loopwright.learn.forward import packed_logprobs
from loopwright.models.load import LoadedModel
from loopwright.types import Aggregate, Group

BOUNDED = settings(max_examples=25, deadline=None, derandomize=True)
STILL: dict[str, Any] = {"lr": 0.0, "max_grad_norm": None}
"""A step that leaves the weights where they are, and its gradients as they were computed."""


@pytest.fixture(scope="module")
def loaded(model_folder: Path) -> LoadedModel:
    return load_tiny(model_folder)


@pytest.fixture(scope="module")
def reference(model_folder: Path) -> Any:
    return eager_model(model_folder)


def packed(loaded: LoadedModel, groups: list[Group], **overrides: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one train step."""
    report = learner_of(loaded, **(STILL | overrides))._step(groups)
    return report.metrics["loss"], {name: p.grad.clone() for name, p in loaded.model.named_parameters()}


@BOUNDED
@given(
    groups=random_groups(),
    temperature=st.sampled_from([1.0, 0.7]),
    aggregate=st.sampled_from(Aggregate),
    micro_batch_tokens=st.sampled_from([1, 40, 4096]),
    short=st.sampled_from([0, 20, 256]),
)
def test_packed_equals_padded(
    loaded: LoadedModel,
    reference: Any,
    groups: list[Group],
    temperature: float,
    aggregate: Aggregate,
    micro_batch_tokens: int,
    short: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "SHORT", short)
        loss, grads = packed(
            loaded, groups, temperature=temperature, aggregate=aggregate, micro_batch_tokens=micro_batch_tokens
        )
    rows = rows_of(groups, aggregate)
    expected = loss_of(reference, rows, temperature)
    scale = sum(abs(row.advantage) * row.weight * row.chain.sampled for row in rows)
    assert abs(loss - expected.item()) <= 1e-5 * scale
    assert difference(grads, gradients(reference, expected)) < 1e-5


@settings(BOUNDED, max_examples=6)
@given(groups=random_groups())
def test_the_size_of_micro_batches_changes_nothing(loaded: LoadedModel, groups: list[Group]) -> None:
    loss, grads = packed(loaded, groups)
    for tokens in (1, 30, 100):
        other_loss, other_grads = packed(loaded, groups, micro_batch_tokens=tokens)
        assert other_loss == pytest.approx(loss, abs=1e-6)
        assert difference(other_grads, grads) < 1e-6


def test_a_sibling_is_invisible(loaded: LoadedModel) -> None:
    """Another token in one answer leaves the logprobs, and so the mismatch, of the other answer as they were."""
    make = Maker(1)
    prompt = make.ids(20)
    mine, theirs, others = (make.chain(prompt, [4]) for _ in range(3))
    learner = learner_of(loaded, **STILL)
    (micro,) = micros_of(learner, [group_of([(1, [mine]), (0, [theirs])])])[0]
    (changed,) = micros_of(learner, [group_of([(1, [mine]), (0, [others])])])[0]
    before, after = (packed_logprobs(body_of(loaded), m.rows, m.tensors, 1.0)[0].detach() for m in (micro, changed))
    assert torch.allclose(before[:4], after[:4], atol=1e-6)
    assert not torch.allclose(before[4:], after[4:], atol=1e-3)


def test_members_without_advantage_weigh_but_are_not_computed(loaded: LoadedModel, reference: Any) -> None:
    """The middle member of each group has advantage 0: left out of the forward pass, it still dilutes the mean."""
    groups = simple_groups(rewards=(1.0, 0.5, 0.0))
    report = learner_of(loaded, **STILL)._step(groups)
    assert report.metrics["trained_tokens"] == 2 * (3 + 5)
    expected = loss_of(reference, rows_of(groups, Aggregate.SEQUENCE), 1.0)
    assert report.metrics["loss"] == pytest.approx(expected.item(), abs=1e-6)
