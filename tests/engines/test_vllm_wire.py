"""vLLM's words: what is asked, and what is taken from its answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.vllm.wire import (
    cache_tokens_of,
    part_from_json,
    prompt_logprobs_from_json,
    request_to_vllm,
    score_request,
    versions_from_json,
)
from loopwright.errors import ConstraintError, RefusedError
from loopwright.types import Constraint, FinishReason, GenerateRequest, Generation, GrammarKind, Sampling

LABELS = VersionLabels("run-1", 3)
REQUEST = GenerateRequest("a/0", (5, 6), Sampling(temperature=0.7, max_new_tokens=9, stop_token_ids=(2,), seed=4))


def event(token: int, finish: str | None, spans: Any) -> Any:
    """An event of a stream of vLLM 0.32."""
    logprobs = {"content": [{"token_id": token, "logprob": -1.5, "rank": 9, "top_logprobs": []}]}
    choice = {"index": 0, "finish_reason": finish, "token_ids": [token], "weight_versions": spans}
    return {"request_id": "generate-tokens-1", "usage": None, "choices": [{**choice, "logprobs": logprobs}]}


def test_the_request_alone_says_where_an_answer_ends_and_no_seed_is_sent() -> None:
    body = request_to_vllm(REQUEST, "a/0#1", "run-1:3:7")
    assert body["request_id"] == "a/0#1"
    assert body["cache_salt"] == "run-1:3:7"
    sampling = body["sampling_params"]
    assert (sampling["ignore_eos"], sampling["stop_token_ids"], sampling["temperature"]) == (True, (2,), 0.7)
    assert "seed" not in sampling
    assert "cache_salt" not in request_to_vllm(REQUEST, "a/0#1", None)
    assert score_request(REQUEST, "salt")["sampling_params"] == {"max_tokens": 1, "prompt_logprobs": 0}


@pytest.mark.parametrize("kind", GrammarKind)
def test_every_constraint_is_sent_as_a_grammar_that_says_how_json_is_written(kind: GrammarKind) -> None:
    """vLLM would let another library keep a bare schema, with any white space."""
    text = "start: /a/\n" if kind is GrammarKind.LARK else '{"type": "object"}'
    body = request_to_vllm(replace(REQUEST, constraint=Constraint(kind, text)), "a/0#1", None)
    sent = body["sampling_params"]["structured_outputs"]
    assert list(sent) == ["grammar"]
    directive, grammar = sent["grammar"].split("\n", 1)
    assert directive == "%llguidance {}", "no other library takes it"
    if kind is GrammarKind.LARK:
        assert grammar == text
    else:
        assert grammar.startswith('start: %json {"x-guidance": {"whitespace_flexible": false')
        assert '"type": "object"' in grammar
    assert "structured_outputs" not in request_to_vllm(REQUEST, "a/0#1", None)["sampling_params"]


def test_a_grammar_that_names_its_library_is_sent_as_it_is() -> None:
    own = '%llguidance {"no_forcing": true}\nstart: /a/\n'
    body = request_to_vllm(replace(REQUEST, constraint=Constraint(GrammarKind.LARK, own)), "a/0#1", None)
    assert body["sampling_params"]["structured_outputs"] == {"grammar": own}


def test_a_schema_that_is_no_json_is_the_constraints_fault() -> None:
    broken = Constraint(GrammarKind.JSON_SCHEMA, "{")
    with pytest.raises(ConstraintError, match="no JSON"):
        request_to_vllm(replace(REQUEST, constraint=broken), "a/0#1", None)


def test_a_part_is_stamped_with_the_version_of_its_request() -> None:
    part = part_from_json(event(7, None, None), 4)
    assert (part.sampled, part.has_ended) == (Generation((7,), (-1.5,), (4,), FinishReason.ABORT), False)
    last = part_from_json(event(8, "length", [1]), 4)
    assert (last.sampled.finish, last.has_ended, last.spans) == (FinishReason.LENGTH, True, [1])


def test_the_likeliest_tokens_are_read_beside_the_sampled_one() -> None:
    asked = [request_to_vllm(replace(REQUEST, alternatives=n), "a", None)["sampling_params"] for n in (0, 2, 20)]
    assert [sampling["logprobs"] for sampling in asked] == [1, 3, 20]
    said = event(7, None, None)
    (entry,) = said["choices"][0]["logprobs"]["content"]
    # vLLM tells the sampled token first, and may spell ids as texts.
    entry["top_logprobs"] = [
        {"token_id": 7, "logprob": -1.5},
        {"token": "token_id:3", "logprob": -0.5},
        {"token": "token_id:4", "logprob": -0.9},
    ]
    assert part_from_json(said, 4, 2).sampled.alternatives == (((3, -0.5), (4, -0.9)),)
    entry["rank"] = 3
    assert part_from_json(said, 4, 3).sampled.alternatives == (((3, -0.5), (4, -0.9), (7, -1.5)),)
    assert part_from_json(said, 4).sampled.alternatives == ()
    entry["top_logprobs"] = []
    with pytest.raises(RefusedError, match="top_logprobs"):
        part_from_json(said, 4, 2)


def span(version: str, start: int, end: int) -> dict[str, Any]:
    return {"version": version, "start": start, "end": end}


@pytest.mark.parametrize(
    ("spans", "labels", "versions"),
    [
        ([span("run-1:3:7", 0, 2)], LABELS, (7, 7)),
        ([span("run-1:3:6", 0, 1), span("run-1:3:7", 1, 2)], LABELS, (6, 7)),
        ([span("default", 0, 2)], None, (0, 0)),
        ([span("12", 0, 1), span("13", 1, 2)], None, (12, 13)),
        ([span("other:1:5", 0, 2)], None, (5, 5)),
    ],
)
def test_versions_are_read_from_labels(spans: Any, labels: VersionLabels | None, versions: tuple[int, ...]) -> None:
    assert versions_from_json(spans, 2, labels) == versions


@pytest.mark.parametrize(
    "spans",
    [
        None,
        [],
        [span("run-1:3:7", 0, 1)],
        [span("run-1:3:7", 1, 3)],
        [span("run-1:2:7", 0, 2)],
        [span("run-2:3:7", 0, 2)],
        [span("default", 0, 2)],
    ],
    ids=["none", "empty", "short", "late", "another lineage", "another run", "weights of its start"],
)
def test_tokens_of_other_weights_are_refused(spans: Any) -> None:
    """T4: a resumed run has another version 7."""
    with pytest.raises(RefusedError, match="weight_versions"):
        versions_from_json(spans, 2, LABELS)


def test_prompt_logprobs_are_those_of_the_prompts_own_tokens() -> None:
    entries = [None, {"6": {"logprob": -2.5, "rank": 3}, "9": {"logprob": -0.1}}]
    assert prompt_logprobs_from_json({"prompt_logprobs": entries}, (5, 6)) == (-2.5,)


@pytest.mark.parametrize("entries", [None, [None], [None, {}], [None, {"6": {}}], [None, {"6": {"logprob": "x"}}]])
def test_prompt_logprobs_that_are_missing_are_no_zeros(entries: Any) -> None:
    with pytest.raises(RefusedError):
        prompt_logprobs_from_json({"prompt_logprobs": entries}, (5, 6))


def test_a_label_names_run_lineage_and_version() -> None:
    assert LABELS.read(LABELS.of(7)) == 7
    assert [LABELS.read(name) for name in ("run-1:3:", "run-1:3:x", "run-1:4:7", "7", "default")] == [None] * 5


def test_the_room_in_the_cache_is_read_from_metrics() -> None:
    metrics = b"""# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="182",sliding_window="None"} 1.0
vllm:num_requests_running{engine="0"} 0.0
"""
    assert cache_tokens_of(metrics) == 128 * 182
    assert cache_tokens_of(metrics.replace(b"182", b"None")) is None
    assert cache_tokens_of(b"") is None
