"""The wire: what is encoded decodes to an equal value, through real JSON, and what does not fit is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.engines.http.wire import (
    generation_from_json,
    generation_to_json,
    probe_from_json,
    probe_to_json,
    request_from_json,
    request_to_json,
    spans_of,
    update_from_json,
    update_to_json,
)
from loopwright.errors import RefusedError
from loopwright.types import (
    IN_PLACE,
    BroadcastBackend,
    Constraint,
    FinishReason,
    GenerateRequest,
    Generation,
    GrammarKind,
    ProbeAnswer,
    Sampling,
    TensorSpec,
    WeightBroadcast,
    WeightFile,
    WeightUpdate,
)
from loopwright.types.spans import joined_spans

ids = st.lists(st.integers(0, 2**31 - 1), max_size=8).map(tuple)
names = st.text(max_size=20)

samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 5),
    max_new_tokens=st.integers(0, 10**6),
    top_k=st.integers(0, 10**6),
    top_p=st.floats(0, 1, exclude_min=True),
    stop_token_ids=ids,
    stop=st.lists(st.text(min_size=1, max_size=8), max_size=3).map(tuple),
    seed=st.integers(0, 2**63 - 1),
)


@st.composite
def requests(draw: st.DrawFn) -> GenerateRequest:
    prompt = draw(ids)
    before = draw(st.integers(0, len(prompt)))
    seconds = draw(st.none() | st.floats(0, 1e6))
    constraint = draw(st.none() | st.builds(Constraint, st.sampled_from(GrammarKind), st.text()))
    own = draw(names), prompt, draw(samplings), draw(st.booleans()), before
    return GenerateRequest(*own, seconds=seconds, constraint=constraint)


@st.composite
def generations(draw: st.DrawFn) -> Generation:
    tokens = draw(ids)
    size: dict[str, Any] = {"min_size": len(tokens), "max_size": len(tokens)}
    logprobs = draw(st.lists(st.floats(-1e30, 0), **size).map(tuple))
    versions = draw(st.lists(st.integers(0, 3), **size).map(tuple))
    flags = draw(st.lists(st.booleans(), **size))
    constrained = joined_spans((place, place + 1) for place, flag in enumerate(flags) if flag)
    return Generation(tokens, logprobs, versions, draw(st.sampled_from(FinishReason)), constrained=constrained)


def sent(value: Any) -> Any:
    return json.loads(json.dumps(value))


@given(requests())
@settings(max_examples=40)
def test_a_request_arrives_as_it_was_sent(request: GenerateRequest) -> None:
    assert request_from_json(sent(request_to_json(request))) == request


@given(generations())
def test_a_generation_arrives_to_the_last_bit_of_its_logprobs(generation: Generation) -> None:
    assert generation_from_json(sent(generation_to_json(generation))) == (generation, True)
    cut = replace(generation, finish=FinishReason.ABORT)
    assert generation_from_json(sent(generation_to_json(generation, ended=False))) == (cut, False)


@given(st.lists(st.integers(0, 3), max_size=20))
def test_spans_cover_every_token_once_and_change_with_the_version(versions: list[int]) -> None:
    spans = spans_of(versions)
    assert [span["version"] for span in spans for _ in range(span["start"], span["end"])] == versions
    assert all(one["version"] != other["version"] for one, other in pairwise(spans))


tensors = st.dictionaries(names, st.builds(TensorSpec, st.sampled_from(["F32", "BF16"]), ids), max_size=4)


files = st.builds(WeightFile, names, st.integers(0), names, tensors)
backends = st.sampled_from(BroadcastBackend)
ports, sizes, seconds = st.integers(1, 65535), st.integers(1, 9), st.floats(1, 99)
broadcasts = st.builds(WeightBroadcast, files, names, ports, names, sizes, backends, seconds, st.integers(1))


@given(st.integers(0, 99), st.just(IN_PLACE) | files | broadcasts)
def test_an_update_arrives_as_it_was_sent(version: int, update: WeightUpdate) -> None:
    assert update_from_json(sent(update_to_json(version, update))) == (version, update)


@given(st.lists(st.floats(-50, 0), max_size=5))
def test_a_probe_arrives_as_it_was_answered(logprobs: list[float]) -> None:
    sampled = Generation((1, 2), (-0.5, -0.25), (3, 3), FinishReason.LENGTH)
    answer = ProbeAnswer(tuple(logprobs), sampled)
    assert probe_from_json(sent(probe_to_json(answer))) == answer


def test_only_the_prompt_is_needed() -> None:
    assert request_from_json({"token_ids": [1]}) == GenerateRequest("", (1,), Sampling())
    assert request_from_json({"token_ids": [1], "sampling_params": {"top_k": -1}}).sampling.top_k == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token_ids": None}, "token_ids"),
        ({"token_ids": [1, "2"]}, "token_ids"),
        ({"token_ids": [1.5]}, "token_ids"),
        ({"token_ids": [True]}, "token_ids"),
        ({"sampling_params": [1]}, "sampling_params"),
        ({"sampling_params": {"temperature": "hot"}}, "temperature"),
        ({"sampling_params": {"temperature": -1}}, "cannot be sampled with"),
        ({"sampling_params": {"stop": "END"}}, "stop"),
        ({"sampled_before": 9}, "sampled_before"),
        ({"request_id": 5}, "request_id"),
    ],
)
def test_a_malformed_request_is_refused_by_the_name_of_its_field(change: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusedError, match=words) as caught:
        request_from_json({"token_ids": [1, 2]} | change)
    assert caught.value.facts["status"] == 400


@pytest.mark.parametrize(
    "change",
    [
        {"logprobs": {"content": []}},
        {"logprobs": {}},
        {"weight_versions": []},
        {"weight_versions": [{"version": 0, "start": 0, "end": 1}]},
        {"weight_versions": [{"version": 0, "start": 1, "end": 3}]},
        {"finish_reason": "bored"},
        {"token_ids": "12"},
    ],
)
def test_a_generation_whose_streams_do_not_align_is_refused(change: dict[str, Any]) -> None:
    """T3, T5: nothing that is missing becomes a zero."""
    body = sent(generation_to_json(Generation((1, 2), (-0.5, -0.25), (0, 1), FinishReason.STOP)))
    body["choices"][0] |= change
    with pytest.raises(RefusedError):
        generation_from_json(body)


@pytest.mark.parametrize("body", [None, [], {"choices": []}, {"choices": [None]}])
def test_what_is_no_answer_is_refused(body: Any) -> None:
    with pytest.raises(RefusedError):
        generation_from_json(body)


def test_a_server_that_says_nothing_of_a_constraint_has_ignored_it() -> None:
    answer = Generation((1,), (-0.5,), (0,), FinishReason.STOP, constrained=((0, 1),))
    body = sent(generation_to_json(answer))
    asked = GenerateRequest("a", (1,), Sampling(), constraint=Constraint(GrammarKind.LARK, "start: /a/"))
    assert generation_from_json(body, asked) == (answer, True)
    del body["choices"][0]["constrained"]
    assert generation_from_json(body)[0].constrained == ()
    with pytest.raises(RefusedError, match="ignores constraints"):
        generation_from_json(body, asked)


@pytest.mark.parametrize("spans", [3, [[0]], [[0, 2]], [[0.0, 1.0]], [["0", "1"]], [[1, 1]]])
def test_spans_that_do_not_fit_are_refused(spans: Any) -> None:
    body = sent(generation_to_json(Generation((1,), (-0.5,), (0,), FinishReason.STOP)))
    body["choices"][0]["constrained"] = spans
    with pytest.raises(RefusedError, match="constrained"):
        generation_from_json(body)


@pytest.mark.parametrize("constraint", [3, {}, {"kind": "regex", "text": "a"}, {"kind": "json"}])
def test_a_malformed_constraint_is_refused(constraint: Any) -> None:
    with pytest.raises(RefusedError):
        request_from_json({"token_ids": [1], "constraint": constraint})
