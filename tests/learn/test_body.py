"""The way by hand and the model's own modules are one model: the same logprobs and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from made_groups import Maker, group_of, learner_of, load_tiny, micros_of
from plain import difference

from loopwright.learn import layout
from loopwright.learn.body import Body, LeanBody, ModuleBody, body_of
from loopwright.learn.forward import packed_logprobs
from loopwright.models.forward import ModuleForward
from loopwright.models.load import LoadedModel
from loopwright.types import Group


@pytest.fixture(scope="module")
def loaded(model_folder: Path) -> LoadedModel:
    return load_tiny(model_folder)


def some_groups() -> list[Group]:
    """Two groups of several turns, so that tokens which predict nothing lie among those that do."""
    make, groups = Maker(3), []
    for draw, size in enumerate((12, 20)):
        prompt = make.ids(size)
        groups.append(group_of([(float(i), [make.chain(prompt, [4, 3, 2 + i])]) for i in range(3)], draw))
    return groups


def result_of(body: Body, loaded: LoadedModel) -> tuple[torch.Tensor, dict[str, Any]]:
    """Logprobs, and the gradients of their weighted sum."""
    ((micro,),) = micros_of(learner_of(loaded), some_groups())
    loaded.model.zero_grad()
    logprobs, _ = packed_logprobs(body, micro.rows, micro.tensors, 1.0)
    (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
    return logprobs.detach(), {name: p.grad.clone() for name, p in loaded.model.named_parameters()}


@pytest.mark.parametrize("short", [0, 10_000], ids=["parts", "mask"])
def test_both_ways_agree(loaded: LoadedModel, short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "SHORT", short)
    by_hand = body_of(loaded)
    assert isinstance(by_hand, LeanBody)
    ours, grads = result_of(by_hand, loaded)
    theirs, expected = result_of(ModuleBody(loaded.model), loaded)
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert difference(grads, expected) < 1e-5


def test_gradients_of_several_passes_add_up(loaded: LoadedModel) -> None:
    body = body_of(loaded)
    _, once = result_of(body, loaded)
    ((micro,),) = micros_of(learner_of(loaded), some_groups())
    loaded.model.zero_grad()
    for _ in range(2):
        logprobs, _ = packed_logprobs(body, micro.rows, micro.tensors, 1.0)
        (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
    twice = {name: p.grad for name, p in loaded.model.named_parameters()}
    assert difference(twice, {name: 2 * grad for name, grad in once.items()}) < 1e-6


def test_a_model_that_is_not_recognised_keeps_its_modules(loaded: LoadedModel) -> None:
    own = LoadedModel(loaded.model, loaded.tokenizer, loaded.max_context, ModuleForward(loaded.model))
    assert isinstance(body_of(own), ModuleBody)
