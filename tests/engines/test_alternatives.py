"""The likeliest tokens beside the sampled ones: of the distribution that logprobs are of, and no concern of what is
sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_model import TOLERANCE, PlainModel
from served_engine import behind_door, served

from loopwright.core.partial_answer import PartialAnswer
from loopwright.engines.controller import RolloutController
from loopwright.engines.http.connection import Connections
from loopwright.engines.http.wire import generation_from_json, generation_to_json, request_from_json, request_to_json
from loopwright.engines.sglang.engine import SglangEngine
from loopwright.engines.torch.engine import TorchEngine
from loopwright.engines.worker import Worker
from loopwright.errors import AlternativesError, EngineError, RefusedError
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel
from loopwright.render.recording.likeliest import likeliest_of, packed_likeliest
from loopwright.types import Constraint, FinishReason, GenerateRequest, Generation, GrammarKind, PauseMode, Sampling

PROMPT = tuple(range(3, 20))
SCHEMA = Constraint(GrammarKind.JSON_SCHEMA, '{"type": "array", "items": {"enum": ["red", 3]}, "minItems": 3}')


def ask(id: str, alternatives: int, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(id, PROMPT, Sampling(**{"max_new_tokens": 12, **sampling}), alternatives=alternatives)


@pytest.fixture
async def engine(loaded: LoadedModel) -> AsyncIterator[TorchEngine]:
    with ComputeThread() as compute:
        async with TorchEngine(loaded, compute, max_batch=8) as engine:
            yield engine


def check(plain: PlainModel, request: GenerateRequest, said: Generation) -> None:
    """What is told is what transformers finds likeliest under log-softmax(logits / T), without any limit (T8)."""
    (rows,) = plain.logits(0, [(*PROMPT, *said.ids)])
    odds = (rows / (request.sampling.temperature or 1.0)).log_softmax(-1)
    assert len(said.alternatives) == len(said.ids)
    for place, likeliest in enumerate(said.alternatives):
        exact = odds[len(PROMPT) + place - 1]
        best = exact.topk(request.alternatives).values.tolist()
        assert [logprob for _, logprob in likeliest] == pytest.approx(best, abs=TOLERANCE)
        assert all(abs(float(exact[token]) - logprob) < TOLERANCE for token, logprob in likeliest)
        told = dict(likeliest)
        assert told.get(said.ids[place], said.logprobs[place]) == said.logprobs[place]


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.7}, {"temperature": 0.0}, {"temperature": 1.3, "top_k": 2, "top_p": 0.5}],
    ids=["T=1", "T=0.7", "greedy", "cut"],
)
async def test_the_likeliest_tokens_are_those_of_the_distribution_that_logprobs_are_of(
    engine: TorchEngine, plain: PlainModel, sampling: dict[str, Any]
) -> None:
    asked = [ask("none", 0, **sampling), ask("one", 1, **sampling), ask("many", 20, **sampling)]
    none, *told = await asyncio.gather(*(engine.generate(request) for request in asked))
    assert none.alternatives == ()
    for request, said in zip(asked[1:], told, strict=True):
        assert (said.ids, said.logprobs, said.versions) == (none.ids, none.logprobs, none.versions)
        check(plain, request, said)


async def test_a_form_of_the_answer_hides_no_likely_token(engine: TorchEngine, plain: PlainModel) -> None:
    request = replace(ask("formed", 5, stop_token_ids=(2,)), constraint=SCHEMA)
    said = await engine.generate(request)
    assert said.constrained
    check(plain, request, said)
    assert any(said.ids[place] not in dict(likeliest) for place, likeliest in enumerate(said.alternatives))


async def test_what_a_pool_a_door_and_a_server_tell_is_the_same(engine: TorchEngine) -> None:
    request = ask("same", 3)
    whole = await engine.generate(request)
    heard: list[Generation] = []
    async with served(engine) as client:
        assert await client.generate(request) == whole
        assert await client.generate(replace(request, part_tokens=1), heard.append) == whole
    assert [one for part in heard for one in part.alternatives] == list(whole.alternatives[: len(heard)])

    assert (await _through_a_door(engine, request)) == whole


async def _through_a_door(engine: TorchEngine, request: GenerateRequest) -> Generation:
    @asynccontextmanager
    async def launch() -> AsyncIterator[Worker]:
        async def dead() -> str:
            await asyncio.Event().wait()
            return ""

        yield Worker(engine, dead)

    async with RolloutController.open([launch]) as controller, behind_door(controller) as client:
        return await client.generate(request)


async def test_a_pool_keeps_them_in_an_answer_that_it_cuts(engine: TorchEngine, plain: PlainModel) -> None:
    """The controller goes on after an abort, as after the death of an engine. A pause may come at any token."""

    @asynccontextmanager
    async def launch() -> AsyncIterator[Worker]:
        yield Worker(engine, asyncio.Event().wait)  # type: ignore[arg-type]

    request, seen = ask("cut", 3, max_new_tokens=60, top_k=5), list[Generation]()
    whole = await engine.generate(request)
    async with asyncio.timeout(60), RolloutController.open([launch]) as controller:
        call = asyncio.create_task(controller.generate(replace(request, part_tokens=1), seen.append))
        for cut in (3, 9, 20):
            while sum(len(part.ids) for part in seen) < cut:
                await asyncio.sleep(0.001)
            await controller.pause(PauseMode.ABORT)
            await controller.resume()
        said = await call
    assert (said.ids, len(said.alternatives)) == (whole.ids, 60)
    assert [len(part.alternatives) for part in seen] == [len(part.ids) for part in seen]
    check(plain, request, said)


@given(st.integers(1, 11))
def test_an_answer_that_was_cut_keeps_its_alternatives(cut: int) -> None:
    ids = tuple(range(12))
    told = tuple(((token, -1.0), (token + 1, -2.0)) for token in ids)
    whole = Generation(ids, (-1.0,) * 12, (0,) * 12, FinishReason.STOP, alternatives=told)
    heard: list[Generation] = []
    answer = PartialAnswer(ask("cut", 2), heard.append)
    answer.hear(
        replace(whole.since(0), ids=ids[:cut], logprobs=(-1.0,) * cut, versions=(0,) * cut, alternatives=told[:cut])
    )
    rest = answer.rest()
    assert (rest.alternatives, rest.sampled_before) == (2, cut)
    assert answer.add(whole.since(cut)) == whole
    assert tuple(one for part in heard for one in part.alternatives) == told


def test_alternatives_cross_the_wire_and_odd_ones_are_refused() -> None:
    request = ask("wire", 2)
    assert request_from_json(request_to_json(request)) == request
    with pytest.raises(RefusedError, match="from 0 to 20"):
        request_from_json({**request_to_json(request), "alternatives": 21})
    told = (((1, -0.5), (9, -1.5)), ((3, -0.25),))
    said = Generation((1, 2), (-0.5, -3.0), (0, 0), FinishReason.STOP, alternatives=told)
    body = generation_to_json(said)
    assert generation_from_json(_listed(body), request) == (said, True)
    assert generation_from_json(_listed(generation_to_json(replace(said, alternatives=()))), ask("wire", 0))[1]
    with pytest.raises(RefusedError, match="older server"):
        generation_from_json(_listed(generation_to_json(replace(said, alternatives=()))), request)
    with pytest.raises(EngineError, match="alternatives of 1"):
        replace(said, alternatives=told[:1])


def _listed(body: Any) -> Any:
    return json.loads(json.dumps(body))


rows = st.lists(st.tuples(st.integers(0, (1 << 31) - 1), st.floats(-1e4, 0, width=32)), min_size=1, max_size=20).map(
    tuple
)


@given(st.lists(rows, max_size=6).map(tuple))
def test_what_is_kept_reads_as_it_was(alternatives: Any) -> None:
    assert likeliest_of(packed_likeliest(alternatives)) == alternatives


async def test_an_sglang_server_is_not_asked() -> None:
    with Connections("http://127.0.0.1:9", None) as connections, pytest.raises(AlternativesError):
        await SglangEngine(connections, None).generate(ask("no", 3))
