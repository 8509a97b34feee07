"""The real model: it answers, and in a mixed batch every logprob is that of transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from plain_model import TOLERANCE, PlainModel, Sample

from loopwright.engines.torch.batch import EngineBatch
from loopwright.engines.torch.grammar import Grammars
from loopwright.models.load import LoadedModel, load_model
from loopwright.models.smollm2 import smollm2_folder
from loopwright.render.chat_template import ChatTemplateRenderer
from loopwright.types import AnswerForm, GenerateRequest, Sampling
from loopwright.types.spans import spanned

CACHE = Path.home() / ".cache" / "loopwright" / "models"
QUESTIONS = ("Name the capital of France.", "What is 7+12? Answer with the number only.")

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def real() -> Iterator[LoadedModel]:
    # On a busy machine two threads mostly wait for each other: 60 seconds instead of 6.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model("smollm2", cache=CACHE)
    torch.set_num_threads(threads)


def prompt(real: LoadedModel, question: str) -> tuple[int, ...]:
    messages = [{"role": "user", "content": question}]
    return tuple(real.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def test_it_answers_and_every_logprob_is_exact_in_a_mixed_batch(real: LoadedModel) -> None:
    stop = (real.tokenizer.eos_token_id,)
    requests = [
        GenerateRequest(f"{question}{temperature}", prompt(real, question), Sampling(temperature, 24, 0, 1.0, stop))
        for question in QUESTIONS
        for temperature in (0.0, 0.7, 1.0)
    ]
    batch = EngineBatch(real, max_batch=4)
    sequences = [batch.submit(request) for request in requests]
    while not batch.idle:
        batch.step()
    assert "Paris" in real.tokenizer.decode(sequences[0].ids)
    plain = PlainModel(smollm2_folder(CACHE))
    plain.check(Sample(s.request, s.ids, s.logprobs, s.versions) for s in sequences)


def test_it_calls_a_tool_that_it_must_call_and_every_logprob_is_the_free_models(real: LoadedModel) -> None:
    """Without worked examples it never writes a call by itself."""
    city = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
    tools = ({"name": "get_weather", "description": "Tells the weather of a city.", "parameters": city},)
    renderer = ChatTemplateRenderer(real.tokenizer)
    ids = renderer.render([{"role": "user", "content": "What is the weather in Paris?"}], tools)
    constraint = renderer.constraint(AnswerForm(None, tools, one_call=True), ids)
    grammars, batch = Grammars(real.tokenizer, real.model.config.vocab_size), EngineBatch(real, max_batch=4)
    stop = renderer.stop_token_ids
    requests = [
        GenerateRequest(f"r{seed}", ids, Sampling(0.7, 60, stop_token_ids=stop, seed=seed), constraint=constraint)
        for seed in range(3)
    ]
    sequences = [batch.submit(request, grammars.state(request, constraint)) for request in requests]
    while not batch.idle:
        batch.step()
    plain = PlainModel(smollm2_folder(CACHE))
    for sequence in sequences:
        (call,) = renderer.parse(sequence.ids, tools, ids).tool_calls
        assert (call.name, list(json.loads(call.arguments))) == ("get_weather", ["city"])
        rows = plain.logits(0, [(*ids, *sequence.ids)])[0][len(ids) - 1 : -1] / 0.7
        exact = rows.log_softmax(-1).gather(1, torch.tensor(sequence.ids)[:, None])[:, 0]
        assert sequence.logprobs == pytest.approx(exact.tolist(), abs=TOLERANCE)
        chosen = len(sequence.ids) - spanned(sequence.generation().constrained)
        assert 0 < chosen < len(sequence.ids) / 2


def test_it_is_proven_in_half_precision_too(real: LoadedModel) -> None:
    """`real` is there for its setting of threads."""
    assert load_model("smollm2", cache=CACHE, dtype="bfloat16").model.dtype == torch.bfloat16
