"""What is computed, counted token by token: a history that is known is copied, and nothing outlives its weights."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from plain_model import PlainModel, Sample, put

from loopwright.engines.torch import prompts as prompts_module
from loopwright.engines.torch import sequence as engine_sequence
from loopwright.engines.torch.batch import EngineBatch
from loopwright.engines.torch.forward import Forward
from loopwright.models.load import LoadedModel
from loopwright.types import GenerateRequest, Sampling

LARGE = 10_000
TASK = tuple(range(3, 63))
HEAD = tuple(range(100, 160))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each pass computed."""
    passes: list[int] = []
    run_model = Forward._run

    def counting(self: Forward, ids: Sequence[int], *others: Any) -> torch.Tensor:
        passes.append(len(ids))
        return run_model(self, ids, *others)

    monkeypatch.setattr(Forward, "_run", counting)
    return passes


def ask(batch: EngineBatch, *prompts: tuple[int, ...], tokens: int = 5) -> list[engine_sequence.Sequence]:
    """The answers to prompts that come together."""
    sequences = [
        batch.submit(GenerateRequest(str(seed), prompt, Sampling(max_new_tokens=tokens, seed=seed)))
        for seed, prompt in enumerate(prompts)
    ]
    while not batch.idle:
        batch.step()
    return sequences


def stream(sequence: engine_sequence.Sequence) -> tuple[int, ...]:
    return (*sequence.request.prompt_ids, *sequence.ids)


def check(plain: PlainModel, *sequences: engine_sequence.Sequence) -> None:
    plain.check(Sample(s.request, s.ids, s.logprobs, s.versions) for s in sequences)


@pytest.mark.parametrize(("cache_tokens", "known"), [(LARGE, len(TASK) + 4), (40, 40), (0, 0)])
def test_a_second_turn_computes_what_is_new(
    loaded: LoadedModel, plain: PlainModel, computed: list[int], cache_tokens: int, known: int
) -> None:
    """The last token of an answer was never fed to the model, so that it is computed with the next prompt."""
    batch = EngineBatch(loaded, max_batch=4, cache_tokens=cache_tokens)
    [first] = ask(batch, TASK)
    assert computed == [60, 1, 1, 1, 1]
    computed.clear()
    second = (*stream(first), 7, 8, 9)
    answers = ask(batch, second)
    assert computed == [len(second) - known, 1, 1, 1, 1]
    check(plain, first, *answers)


def test_the_same_prompt_again_computes_its_last_token(
    loaded: LoadedModel, plain: PlainModel, computed: list[int]
) -> None:
    batch = EngineBatch(loaded, max_batch=4, cache_tokens=LARGE)
    answers = ask(batch, TASK, tokens=1) + ask(batch, TASK, tokens=1)
    assert computed == [60, 1]
    check(plain, *answers)


def test_answers_that_leave_the_batch_idle_are_copied_when_somebody_comes(
    loaded: LoadedModel, plain: PlainModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other weights often come first. Then nothing is copied, and rows are free again nevertheless."""
    kept: list[str] = []
    keep = Forward.keep

    def counting(self: Forward, sequence: engine_sequence.Sequence) -> None:
        kept.append(sequence.request.id)
        keep(self, sequence)

    monkeypatch.setattr(Forward, "keep", counting)
    batch = EngineBatch(loaded, max_batch=4, cache_tokens=LARGE)
    before = ask(batch, TASK, HEAD)
    batch.step()
    put(loaded.model, plain.versions[1])
    batch.reload(1)
    assert kept == []
    assert not any(sequence.row or sequence.prefix.row for sequence in before)
    after = ask(batch, TASK, stream(before[0]))
    batch.step()
    batch.submit(GenerateRequest("next", HEAD, Sampling()))
    assert sorted(kept) == ["0", "1"]
    assert not any(sequence.row or sequence.prefix.row for sequence in after)
    check(plain, *before, *after)


def test_answers_that_cannot_be_copied_are_forgotten_and_harm_nobody(
    loaded: LoadedModel, plain: PlainModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(self: Forward, sequence: engine_sequence.Sequence) -> None:
        raise RuntimeError("can't allocate memory")

    batch = EngineBatch(loaded, max_batch=4, cache_tokens=LARGE)
    before = ask(batch, TASK, HEAD)
    check(plain, *before)
    memory = [weakref.ref(sequence.row.arena) for sequence in before if sequence.row]
    before.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Forward, "keep", no_memory)
        after = batch.submit(GenerateRequest("next", HEAD, Sampling(max_new_tokens=5)))
    gc.collect()
    assert [arena() for arena in memory] == [None, None]
    while not batch.idle:
        batch.step()
    check(plain, after)


def test_an_aborted_answer_goes_on_from_what_was_computed(loaded: LoadedModel, computed: list[int]) -> None:
    batch = EngineBatch(loaded, max_batch=4, cache_tokens=LARGE)
    cut_short = batch.submit(GenerateRequest("r", TASK, Sampling(max_new_tokens=9)))
    for _ in range(5):
        batch.step()
    batch.drop(cut_short)
    computed.clear()
    ask(batch, stream(cut_short), tokens=1)
    assert computed == [1]


def test_a_short_common_beginning_is_not_worth_a_copy(loaded: LoadedModel, computed: list[int]) -> None:
    batch = EngineBatch(loaded, max_batch=4, cache_tokens=LARGE)
    ask(batch, TASK, tokens=1)
    alike = TASK[: prompts_module.WORTH_COPYING - 1]
    ask(batch, (*alike, 200, 201), tokens=1)
    assert computed == [60, len(alike) + 2]


def test_a_new_head_of_many_prompts_is_computed_once(
    loaded: LoadedModel, plain: PlainModel, computed: list[int]
) -> None:
    prompts = [(*HEAD, *range(10 * i, 10 * i + 8)) for i in range(8)]
    batch = EngineBatch(loaded, max_batch=8, cache_tokens=LARGE)
    answers = ask(batch, *prompts, tokens=1)
    assert computed == [68, 7 * 8]
    check(plain, *answers)


def test_a_few_common_tokens_are_not_worth_a_pass(loaded: LoadedModel, computed: list[int]) -> None:
    prompts = [(*HEAD, i) for i in range(1 + (prompts_module.WORTH_A_PASS - 1) // len(HEAD))]
    ask(EngineBatch(loaded, max_batch=8, cache_tokens=LARGE), *prompts, tokens=1)
    assert computed == [61 * len(prompts)]


def test_other_weights_forget_what_is_kept(loaded: LoadedModel, plain: PlainModel, computed: list[int]) -> None:
    """T4: no token rests on keys of earlier weights."""
    batch = EngineBatch(loaded, max_batch=4, cache_tokens=LARGE)
    before = ask(batch, TASK)
    computed.clear()
    put(loaded.model, plain.versions[1])
    batch.reload(1)
    after = ask(batch, (*stream(before[0]), 7))
    assert computed[0] == len(TASK) + 6
    assert set(after[0].versions) == {1}
    check(plain, *before, *after)
