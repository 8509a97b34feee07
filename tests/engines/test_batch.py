"""The batch in single scenes: greedy decoding, crowds, interruptions, shared prompts, a fresh start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_model import PlainModel, Sample, put
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from loopwright.engines.torch import forward as forward_module
from loopwright.engines.torch.batch import EngineBatch
from loopwright.engines.torch.forward import FIRST_ROW, Forward
from loopwright.errors import EngineError
from loopwright.models.load import LoadedModel, load_model
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import FinishReason, GenerateRequest, Generation, Sampling

PROMPTS = [tuple(range(3, 20)), (7,), tuple(range(40, 120, 2))]


def run(loaded: LoadedModel, requests: Sequence[GenerateRequest], max_batch: int = 16) -> list[Generation]:
    batch = EngineBatch(loaded, max_batch=max_batch)
    sequences = [batch.submit(request) for request in requests]
    while not batch.idle:
        batch.step()
    return [sequence.generation() for sequence in sequences]


def ask(prompt: tuple[int, ...], **sampling: Any) -> GenerateRequest:
    return GenerateRequest("r", prompt, Sampling(**sampling))


def greedy_by_transformers(plain: PlainModel, prompt: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    put(plain.model, plain.versions[0])
    ids = torch.tensor([prompt])
    output = plain.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens
    )
    return tuple(output[0, len(prompt) :].tolist())


def test_greedy_output_is_that_of_transformers_token_for_token(loaded: LoadedModel, plain: PlainModel) -> None:
    """Long enough for the rows to be outgrown twice."""
    tokens = 2 * FIRST_ROW + 5
    # `min_new_tokens` forbids transformers the end token, so no prompt may want it.
    expected = [greedy_by_transformers(plain, prompt, tokens) for prompt in PROMPTS]
    crowd = [ask(prompt, max_new_tokens=30, seed=seed) for seed, prompt in enumerate(PROMPTS * 2)]
    greedy = [ask(prompt, temperature=0, max_new_tokens=tokens) for prompt in PROMPTS]
    generations = run(loaded, [*greedy, *crowd])
    assert [generation.ids for generation in generations[:3]] == expected
    assert run(loaded, greedy[:1])[0].ids == expected[0]


@pytest.mark.parametrize("worth_sharing", [0, 10**9])
def test_values_may_have_other_dimensions_than_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worth_sharing: int
) -> None:
    """As in models with latent attention. Loading lets them pass, so decoding has to."""
    monkeypatch.setattr(forward_module, "WORTH_SHARING", worth_sharing)
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=12,
        first_k_dense_replace=2,
        max_position_embeddings=512,
        initializer_range=0.3,
    )
    DeepseekV3ForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), cache=tmp_path)
    requests = [ask(prompt, max_new_tokens=20, seed=seed) for seed, prompt in enumerate(PROMPTS)]
    pairs = zip(requests, run(loaded, requests), strict=True)
    PlainModel(tmp_path).check(Sample(request, g.ids, g.logprobs, g.versions) for request, g in pairs)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_crowd_does_not_change_what_a_request_samples(
    loaded: LoadedModel, plain: PlainModel, temperature: float
) -> None:
    requests = [
        ask(prompt, temperature=temperature, max_new_tokens=20 + seed, seed=seed)
        for prompt in PROMPTS
        for seed in range(4)
    ]
    together = run(loaded, requests, max_batch=5)
    alone = [run(loaded, [request])[0] for request in requests]
    assert [generation.ids for generation in together] == [generation.ids for generation in alone]
    assert len({generation.ids[:4] for generation in together}) == len(requests)
    pairs = [*zip(requests, together, strict=True), *zip(requests, alone, strict=True)]
    plain.check(Sample(request, g.ids, g.logprobs, g.versions) for request, g in pairs)


def test_an_interruption_does_not_change_what_a_request_samples(loaded: LoadedModel) -> None:
    """Prompt and partial answer, submitted again, continue as if nothing had happened."""
    [whole] = run(loaded, [ask(PROMPTS[0], max_new_tokens=30, seed=9)])
    [first] = run(loaded, [ask(PROMPTS[0], max_new_tokens=11, seed=9)])
    [rest] = run(loaded, [ask(PROMPTS[0] + first.ids, max_new_tokens=19, seed=9)])
    assert first.ids + rest.ids == whole.ids


def test_the_prompt_of_a_group_is_computed_once(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    run_model = Forward._run

    def counting(self: Forward, ids: Sequence[int], *others: Any) -> torch.Tensor:
        computed.append(len(ids))
        return run_model(self, ids, *others)

    monkeypatch.setattr(Forward, "_run", counting)
    prompt, members, tokens = PROMPTS[2], 8, 5
    run(loaded, [ask(prompt, max_new_tokens=tokens, seed=seed) for seed in range(members)])
    assert computed == [len(prompt)] + [members] * (tokens - 1)


def test_members_that_had_to_wait_still_share_the_prompt(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    advance = Forward.advance

    def counting(self: Forward, sequences: Any, prefixes: Any) -> Any:
        prefixes = list(prefixes)
        computed.append(len(prefixes))
        return advance(self, sequences, prefixes)

    monkeypatch.setattr(Forward, "advance", counting)
    run(loaded, [ask(PROMPTS[0], max_new_tokens=3, seed=seed) for seed in range(5)], max_batch=2)
    assert sum(computed) == 1


def test_a_prompt_that_fills_the_context_ends_at_once(loaded: LoadedModel) -> None:
    room = loaded.max_context
    full, beyond, almost = (ask((5,) * length, max_new_tokens=9) for length in (room, room + 3, room - 2))
    generations = run(loaded, [full, beyond, almost])
    assert [len(generation.ids) for generation in generations] == [0, 0, 2]
    assert {generation.finish for generation in generations} == {FinishReason.LENGTH}


def test_a_reset_leaves_nothing_behind_not_even_nan(loaded: LoadedModel, plain: PlainModel) -> None:
    """A cell that is not used counts with weight 0, and 0 times NaN is NaN."""
    batch = EngineBatch(loaded, max_batch=4)
    broken = {name: torch.full_like(weight, float("nan")) for name, weight in plain.versions[0].items()}
    put(loaded.model, broken)
    for length in (30, 8):
        batch.submit(ask(tuple(range(length)), temperature=0, max_new_tokens=20))
    with pytest.raises(EngineError, match="not numbers"):
        batch.step()
    batch.reset()
    assert (batch.idle,) == (True,)
    put(loaded.model, plain.versions[0])
    requests = [ask(prompt, max_new_tokens=9) for prompt in PROMPTS]
    sequences = [batch.submit(request) for request in requests]
    while not batch.idle:
        batch.step()
    plain.check(Sample(s.request, s.ids, s.logprobs, s.versions) for s in sequences)
