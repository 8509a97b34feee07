"""Answers that keep a grammar: legal, sampled as the model would within it, and nobody else's business."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_model import TOLERANCE, PlainModel
from served_engine import served

from loopwright.engines.controller import RolloutController
from loopwright.engines.http.connection import Connections
from loopwright.engines.sglang.engine import SglangEngine
from loopwright.engines.torch.batch import EngineBatch
from loopwright.engines.torch.engine import TorchEngine
from loopwright.engines.torch.grammar import Grammars
from loopwright.engines.torch.sequence import Sequence as EngineSequence
from loopwright.engines.worker import Worker
from loopwright.errors import ConstraintError
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.types import (
    Constraint,
    FinishReason,
    GenerateRequest,
    Generation,
    GrammarKind,
    PauseMode,
    Sampling,
)

HERE = torch.device("cpu")
PROMPT = tuple(range(3, 20))
OTHER = (9, 8, 7, 30, 31)
STOP = 2
"""The tiny tokenizer's end of a turn."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "done": {"type": "boolean"},
        "colour": {"enum": ["red", "green"]},
        "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        "name": {"type": "string", "maxLength": 6},
    },
    "required": ["done", "colour", "sizes", "name"],
    "additionalProperties": False,
}
HYPOTHESIS = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def schema_of(schema: Any) -> Constraint:
    return Constraint(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def ask(id: str, constraint: Constraint | None, prompt: Sequence[int] = PROMPT, **sampling: Any) -> GenerateRequest:
    wanted = {"max_new_tokens": 400, "stop_token_ids": (STOP,), **sampling}
    return GenerateRequest(id, tuple(prompt), Sampling(**wanted), constraint=constraint)


def run(loaded: LoadedModel, requests: Sequence[GenerateRequest], grammars: Grammars) -> list[EngineSequence]:
    """All requests in one batch, to their ends."""
    batch = EngineBatch(loaded, max_batch=8)
    sequences = [
        batch.submit(request, grammars.state(request, request.constraint) if request.constraint else None)
        for request in requests
    ]
    while not batch.idle:
        batch.step()
    return sequences


def text_of(loaded: LoadedModel, generation: Generation) -> str:
    ids = [token for token in generation.ids if token != STOP]
    return str(loaded.tokenizer.decode(ids, skip_special_tokens=False))


@pytest.fixture
def grammars(loaded: LoadedModel) -> Grammars:
    return Grammars(loaded.tokenizer, loaded.model.config.vocab_size)


@pytest.fixture
async def engine(loaded: LoadedModel) -> AsyncIterator[TorchEngine]:
    with ComputeThread() as compute:
        async with TorchEngine(loaded, compute, max_batch=8) as engine:
            yield engine


async def test_a_group_answers_in_its_form_and_each_member_in_its_own_words(
    engine: TorchEngine, loaded: LoadedModel
) -> None:
    asked = [ask(f"r{seed}", schema_of(SCHEMA), seed=seed) for seed in range(6)]
    said = await asyncio.gather(*(engine.generate(request) for request in asked))
    values = [json.loads(text_of(loaded, one)) for one in said]
    for one, value in zip(said, values, strict=True):
        assert one.finish is FinishReason.STOP
        assert one.ids[-1] == STOP
        assert list(value) == ["done", "colour", "sizes", "name"]
        assert isinstance(value["done"], bool)
        assert value["colour"] in ("red", "green")
        assert len(value["name"]) <= 6
    assert len({str(value) for value in values}) > 1


async def test_without_a_constraint_the_same_model_strays(engine: TorchEngine, loaded: LoadedModel) -> None:
    said = await engine.generate(ask("free", None))
    assert not said.constrained
    with pytest.raises(ValueError, match=r"."):
        json.loads(text_of(loaded, said))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_logprobs_are_those_of_the_whole_vocabulary_and_only_forced_tokens_are_spanned(
    loaded: LoadedModel, plain: PlainModel, grammars: Grammars, temperature: float
) -> None:
    """T8: every constrained token, forced or chosen, has the logprob that transformers gives without a constraint."""
    asked = [ask(f"r{seed}", schema_of(SCHEMA), seed=seed, temperature=temperature) for seed in range(3)]
    said = [sequence.generation() for sequence in run(loaded, asked, grammars)]
    logits = plain.logits(0, [(*PROMPT, *one.ids) for one in said])
    for request, one, rows in zip(asked, said, logits, strict=True):
        odds = (rows / (temperature or 1.0)).log_softmax(-1)
        exact = [float(odds[len(PROMPT) + n - 1, token]) for n, token in enumerate(one.ids)]
        assert exact == pytest.approx(one.logprobs, abs=TOLERANCE)
        forced = {place for begin, end in one.constrained for place in range(begin, end)}
        assert forced == {n for n, count in enumerate(_choices(request, one, grammars, loaded)) if count == 1}
        assert 0 < len(forced) < len(one.ids)


def _choices(request: GenerateRequest, said: Generation, grammars: Grammars, loaded: LoadedModel) -> list[int]:
    """How many choices there were at each place."""
    from loopwright.engines.torch.grammar import Legal

    assert request.constraint is not None
    state, counts = grammars.state(request, request.constraint), []
    for token in said.ids:
        legal = Legal([(0, state)], loaded.model.config.vocab_size, HERE)
        assert bool(legal.allowed[0, token])
        counts += legal.counts
        state.read(token)
    return counts


leaves = st.sampled_from(
    [
        {"type": "boolean"},
        {"type": "integer"},
        {"type": "null"},
        {"enum": ["a", 'quo"te', "\u00e9\u4e2d", 3, None]},
        {"type": "string", "maxLength": 4},
        {"type": "string", "pattern": "^[a-c]{2,3}$"},
        {"type": "number", "minimum": 0, "maximum": 9},
    ]
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.dictionaries(st.text("xyz", min_size=1, max_size=3), inner, max_size=3)
    return fields.map(
        lambda said: {"type": "object", "properties": said, "required": sorted(said), "additionalProperties": False}
    )


schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        objects(inner),
        inner.map(lambda one: {"type": "array", "items": one, "maxItems": 2}),
        st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": some}),
    ),
    max_leaves=4,
)


@HYPOTHESIS
@given(schemas, st.lists(st.integers(3, 300), min_size=1, max_size=12), st.integers(0, 1 << 30))
def test_any_schema_is_kept_and_nobody_else_in_the_batch_notices(
    loaded: LoadedModel, grammars: Grammars, schema: Any, prompt: list[int], seed: int
) -> None:
    """The others are compared bit for bit with a batch of the same shape in which nobody constrains."""
    endless = {"type": "array", "items": schema, "minItems": 400}
    others = [ask(f"o{n}", None, OTHER, max_new_tokens=20, stop_token_ids=(), seed=seed + n) for n in range(2)]
    free = ask("c", None, prompt, max_new_tokens=20, stop_token_ids=(), seed=seed)
    bound = replace(free, constraint=schema_of(endless))
    alone, beside = (run(loaded, [*others, last], grammars)[:2] for last in (free, bound))
    for one, other in zip(alone, beside, strict=True):
        assert (one.ids, one.logprobs) == (other.ids, other.logprobs)
        assert not other.constrained

    (kept,) = run(loaded, [ask("k", schema_of(schema), prompt, seed=seed)], grammars)
    assert kept.failure is None
    if kept.finish is FinishReason.STOP:
        assert _fits(json.loads(text_of(loaded, kept.generation())), schema)
    else:
        assert kept.finish is FinishReason.LENGTH


def _fits(value: Any, schema: Any) -> bool:
    """As much of JSON schema as `schemas` uses."""
    if "anyOf" in schema:
        return any(_fits(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return bool(value in schema["enum"])
    match schema["type"]:
        case "object":
            inner = schema["properties"]
            return set(value) == set(inner) and all(_fits(value[name], inner[name]) for name in inner)
        case "array":
            return len(value) <= schema["maxItems"] and all(_fits(one, schema["items"]) for one in value)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":
            return isinstance(value, int)
        case "number":
            return bool(0 <= value <= 9)
        case _:
            return isinstance(value, str) and len(value) <= 4


@HYPOTHESIS
@given(st.data())
def test_a_cut_answer_goes_on_in_its_grammar(loaded: LoadedModel, grammars: Grammars, data: st.DataObject) -> None:
    request = ask("r", schema_of(SCHEMA), seed=data.draw(st.integers(0, 99)))
    (whole,) = (sequence.generation() for sequence in run(loaded, [request], grammars))
    cut = data.draw(st.integers(1, len(whole.ids) - 1))
    part = Generation(whole.ids[:cut], whole.logprobs[:cut], whole.versions[:cut], FinishReason.ABORT)
    (rest,) = (sequence.generation() for sequence in run(loaded, [request.after(part)], grammars))
    assert rest.ids == whole.ids[cut:]
    assert rest.logprobs == pytest.approx(whole.logprobs[cut:], abs=TOLERANCE)
    assert rest.constrained == whole.since(cut).constrained


async def test_a_grammar_goes_on_after_a_pause_that_keeps_it_and_across_weights(
    engine: TorchEngine, loaded: LoadedModel
) -> None:
    request = ask("r", schema_of({"type": "array", "items": {"type": "boolean"}, "minItems": 40, "maxItems": 40}))
    seen: list[Generation] = []
    answering = asyncio.create_task(engine.generate(replace(request, part_tokens=1), seen.append))
    async with asyncio.timeout(20):
        while len(seen) < 5:
            await asyncio.sleep(0.001)
    await engine.pause(PauseMode.KEEP)
    await engine.load(1)
    await engine.resume()
    said = await answering
    assert set(said.versions) == {0, 1}
    assert len(json.loads(text_of(loaded, said))) == 40


async def test_special_tokens_are_never_sampled_within_a_grammar(engine: TorchEngine) -> None:
    anything = Constraint(GrammarKind.LARK, "start: /(?s:.{80})/")
    said = await asyncio.gather(*(engine.generate(ask(f"r{seed}", anything, seed=seed)) for seed in range(4)))
    for one in said:
        assert one.finish is FinishReason.STOP
        assert not {0, 1, STOP} & set(one.ids[:-1])


async def test_where_no_token_ends_a_turn_the_answer_ends_with_its_grammar(
    engine: TorchEngine, loaded: LoadedModel
) -> None:
    said = await engine.generate(ask("r", schema_of({"enum": ["red", "green"]}), stop_token_ids=()))
    assert said.finish is FinishReason.STOP
    assert json.loads(text_of(loaded, said)) in ("red", "green")


async def test_tokens_that_run_out_end_the_answer_by_length(engine: TorchEngine) -> None:
    said = await engine.generate(ask("r", schema_of(SCHEMA), max_new_tokens=4))
    assert (said.finish, len(said.ids)) == (FinishReason.LENGTH, 4)


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (schema_of({"type": "objec"}), "objec"),
        (schema_of({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema_of({"$ref": "#/$defs/none"}), "none"),
        (Constraint(GrammarKind.JSON_SCHEMA, "{"), "."),
        (Constraint(GrammarKind.LARK, "start: nothing_of_that_name"), "nothing_of_that_name"),
    ],
)
async def test_a_grammar_that_cannot_be_kept_is_refused_with_its_reason(
    engine: TorchEngine, constraint: Constraint, words: str
) -> None:
    other = asyncio.create_task(engine.generate(ask("free", None, max_new_tokens=30)))
    with pytest.raises(ConstraintError, match=words):
        await engine.generate(ask("r", constraint))
    assert (await other).ids


async def test_a_beginning_that_does_not_keep_the_grammar_is_refused(engine: TorchEngine) -> None:
    with pytest.raises(ConstraintError, match="cannot go on"):
        await engine.generate(replace(ask("r", schema_of(SCHEMA)), sampled_before=3))


async def test_a_vocabulary_that_cannot_write_the_grammar_fails_this_request_only(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loopwright.engines.torch.grammar import GrammarState

    fill = GrammarState.fill

    def nothing_after_three(state: GrammarState, masks: Any, row: int) -> None:
        fill(state, masks, row)
        seen.append(row)
        if len(seen) > 3:
            masks[row] = 0

    seen: list[int] = []
    monkeypatch.setattr(GrammarState, "fill", nothing_after_three)
    other = asyncio.create_task(engine.generate(ask("free", None, max_new_tokens=30, stop_token_ids=())))
    with pytest.raises(ConstraintError, match="no token"):
        await engine.generate(ask("r", schema_of(SCHEMA)))
    assert len((await other).ids) == 30


def test_a_token_that_the_model_never_chooses_has_a_finite_logprob(loaded: LoadedModel, grammars: Grammars) -> None:
    from loopwright.engines.torch.choose import Chooser
    from loopwright.engines.torch.grammar import Legal

    vocabulary = loaded.model.config.vocab_size
    request = ask("r", Constraint(GrammarKind.LARK, 'start: "{"'))
    assert request.constraint is not None
    legal = Legal([(0, grammars.state(request, request.constraint))], vocabulary, HERE)
    logits = torch.zeros(1, vocabulary)
    logits[0, loaded.tokenizer.encode("{")[0]] = -500.0
    ids, logprobs = Chooser([request.sampling], [0], HERE).choose(logits, legal)
    assert ids == loaded.tokenizer.encode("{")
    assert logprobs == pytest.approx([-500 - float(torch.tensor(vocabulary - 1.0).log())])


def test_several_end_tokens_are_one_choice(loaded: LoadedModel, grammars: Grammars) -> None:
    from loopwright.engines.torch.grammar import Legal

    vocabulary = loaded.model.config.vocab_size
    request = ask("r", Constraint(GrammarKind.LARK, 'start: "{"'), stop_token_ids=(STOP, STOP + 1))
    assert request.constraint is not None
    state = grammars.state(request, request.constraint)
    state.read(loaded.tokenizer.encode("{")[0])
    legal = Legal([(0, state)], vocabulary, HERE)
    assert int(legal.allowed.sum()) == 2
    assert legal.counts == [1]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_constraint_and_its_spans_cross_http(engine: TorchEngine, streamed: bool) -> None:
    request = ask("r", schema_of(SCHEMA), seed=3)
    parts: list[Generation] = []
    async with served(engine) as client:
        told = await client.generate(replace(request, part_tokens=3), parts.append if streamed else None)
    assert told == await engine.generate(request)
    assert told.constrained
    assert bool(parts) == streamed


async def test_what_is_wrong_with_a_constraint_crosses_http(engine: TorchEngine) -> None:
    async with served(engine) as client:
        for on_part in (None, lambda part: None):
            with pytest.raises(ConstraintError, match="uniqueItems"):
                await client.generate(ask("r", schema_of({"type": "array", "uniqueItems": True})), on_part)


async def test_a_pool_keeps_the_grammar_of_an_answer_that_it_cuts(loaded: LoadedModel, engine: TorchEngine) -> None:
    """The controller goes on after an abort, as after the death of an engine."""

    @asynccontextmanager
    async def launch() -> AsyncIterator[Worker]:
        yield Worker(engine, asyncio.Event().wait)  # type: ignore[arg-type]

    form = schema_of({"type": "array", "items": {"type": "boolean"}, "minItems": 40, "maxItems": 40})
    seen: list[Generation] = []
    async with asyncio.timeout(60), RolloutController.open([launch]) as controller:
        call = asyncio.create_task(controller.generate(replace(ask("r/0", form), part_tokens=1), seen.append))
        while len(seen) < 5:
            await asyncio.sleep(0.001)
        await controller.pause(PauseMode.ABORT)
        await controller.resume()
        said = await call
    assert len(json.loads(text_of(loaded, said))) == 40
    again = await engine.generate(ask("r/0", form))
    assert (again.ids, again.constrained) == (said.ids, said.constrained)


async def test_sglang_refuses_a_constraint() -> None:
    engine = SglangEngine(Connections("http://127.0.0.1:9", None), None)
    with pytest.raises(ConstraintError, match="SGLang"):
        await engine.generate(ask("r", schema_of(SCHEMA)))


@pytest.mark.parametrize("tokenizer", [object(), "too small"])
def test_a_tokenizer_that_the_library_cannot_read_is_told(loaded: LoadedModel, tokenizer: Any) -> None:
    grammars = Grammars(loaded.tokenizer, 3) if tokenizer == "too small" else Grammars(tokenizer, 300)
    with pytest.raises(ConstraintError, match="cannot be constrained"):
        grammars.state(ask("r", None), schema_of(SCHEMA))
