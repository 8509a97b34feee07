"""Requests and answers in the words of vLLM's generate route (`--enable-scale-out`, vLLM 0.32)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loopwright.engines.http.fields import Fields, malformed
from loopwright.engines.http.wire import choice_from_json
from loopwright.engines.version_labels import VersionLabels
from loopwright.render.grammar import as_lark
from loopwright.types import Constraint, FinishReason, GenerateRequest, Generation
from loopwright.types.sampling import MOST_ALTERNATIVES, Likeliest

DIRECTIVE = "%llguidance"
"""The beginning of a grammar by which llguidance knows its own."""


@dataclass(frozen=True, slots=True)
class VllmPart:
    """Tokens of an answer. The versions of the whole answer come with its last part."""

    sampled: Generation
    has_ended: bool
    spans: Any


def request_to_vllm(
    request: GenerateRequest, name: str, salt: str | None, adapter: str | None = None
) -> Mapping[str, Any]:
    constraint = request.constraint
    # Without a seed: what vLLM samples depends on its batch even with one, and its CPU build dies of several.
    sampling = request.sampling
    return {
        "request_id": name,
        "token_ids": request.prompt_ids,
        "stream": True,
        "sampling_params": {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "stop": sampling.stop,
            "stop_token_ids": sampling.stop_token_ids,
            # Only the request says where an answer ends: vLLM would also stop at the model's own end tokens.
            "ignore_eos": True,
            "logprobs": _asked_logprobs(request.alternatives),
            **({} if constraint is None else {"structured_outputs": {"grammar": _for_llguidance(constraint)}}),
        },
        **_salted(salt),
        **_adapted(adapter),
    }


def score_request(request: GenerateRequest, salt: str | None, adapter: str | None = None) -> Mapping[str, Any]:
    """Asks for the logprobs of the prompt. vLLM refuses to sample no token at all."""
    return {
        "token_ids": request.prompt_ids,
        "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0},
        **_salted(salt),
        **_adapted(adapter),
    }


def part_from_json(body: Any, version: int, alternatives: int = 0) -> VllmPart:
    """A part of an answer whose request was sent to weights `version`, and asked for so many alternatives."""
    choice = choice_from_json(body)
    versions = (version,) * len(choice.ids)
    finish = choice.finish or FinishReason.ABORT
    likeliest = tuple(_likeliest(entry, alternatives) for entry in _content(body)) if alternatives else ()
    sampled = Generation(choice.ids, choice.logprobs, versions, finish, alternatives=likeliest)
    return VllmPart(sampled, choice.finish is not None, choice.spans)


def _for_llguidance(constraint: Constraint) -> str:
    """The grammar, such that no other library takes it: one would allow any white space in JSON. A server uses one
    library for all requests, and with the backend `auto` that is the one that takes the first of them."""
    text = as_lark(constraint)
    return text if text.startswith(DIRECTIVE) else f"{DIRECTIVE} {{}}\n{text}"


def _asked_logprobs(alternatives: int) -> int:
    """vLLM lists the sampled token first, and then the likeliest, up to so many in all. One more leaves room for it,
    but vLLM refuses more than 20."""
    return min(alternatives + 1, MOST_ALTERNATIVES)


def _content(body: Any) -> Sequence[Any]:
    """The entries of the tokens. `choice_from_json` has checked their number."""
    entries: Sequence[Any] = body["choices"][0]["logprobs"]["content"]
    return entries


def _likeliest(entry: Any, asked: int) -> Likeliest:
    """The likeliest tokens in the place of one, without that one if it is none of them."""
    told = entry.get("top_logprobs")
    if not isinstance(told, list) or not told:
        raise malformed("logprobs", "top_logprobs", told, "the likeliest tokens, the sampled one among them")
    fields = [Fields(one, "top_logprobs") for one in told]
    pairs = [(_token_of(one), one.number("logprob")) for one in fields]
    rank = entry.get("rank")
    if isinstance(rank, int) and rank > asked:
        pairs = [(token, logprob) for token, logprob in pairs if token != entry.get("token_id")]
    return tuple(sorted(pairs, key=lambda pair: -pair[1])[:asked])


def _token_of(fields: Fields) -> int:
    """The id of a token that is told as a text such as `token_id:7`."""
    kind, _, number = fields.string("token", "").partition(":")
    return int(number) if kind == "token_id" and number.isdecimal() else fields.integer("token_id")


def versions_from_json(spans: Any, tokens: int, labels: VersionLabels | None) -> tuple[int, ...]:
    """The version of each token of an answer. With `labels`, every span must be named by them."""
    versions: list[int] = []
    for span in spans if isinstance(spans, list) else ():
        fields = Fields(span, "weight_versions")
        if fields.integer("start") != len(versions):
            break
        versions += [_version(fields.string("version"), labels)] * (fields.integer("end") - len(versions))
    if len(versions) != tokens:
        raise malformed("the choice", "weight_versions", spans, f"spans that cover {tokens} tokens")
    return tuple(versions)


def prompt_logprobs_from_json(body: Any, ids: Sequence[int]) -> tuple[float, ...]:
    """The logprob of each prompt token but the first."""
    entries = body.get("prompt_logprobs") if isinstance(body, dict) else None
    if not isinstance(entries, list) or len(entries) != len(ids):
        raise malformed("the answer", "prompt_logprobs", entries, f"{len(ids)} entries, one for each prompt token")
    return tuple(
        Fields(Fields(entry, "prompt_logprobs").mapping(str(token)), "a prompt logprob").number("logprob")
        for token, entry in zip(ids[1:], entries[1:], strict=True)
    )


def cache_tokens_of(metrics: bytes) -> int | None:
    """For how many tokens the server has room, as its Prometheus metrics say. None if they do not."""
    info = re.search(rb"^vllm:cache_config_info\{(.*)\}", metrics, re.M)
    said = dict(re.findall(rb'(\w+)="(\d+)"', info[1])) if info else {}
    blocks, size = said.get(b"num_gpu_blocks"), said.get(b"block_size")
    return int(blocks) * int(size) if blocks and size else None


def _version(name: str, labels: VersionLabels | None) -> int:
    """Whoever else names the weights of a server: a number at the end is taken for their version."""
    if labels is None:
        number = name.rpartition(":")[2]
        return int(number) if number.isdigit() else 0
    version = labels.read(name)
    if version is None:
        raise malformed("the choice", "weight_versions", name, f"a name like {labels.of(0)!r}")
    return version


def _salted(salt: str | None) -> Mapping[str, str]:
    return {} if salt is None else {"cache_salt": salt}


def _adapted(adapter: str | None) -> Mapping[str, str]:
    return {} if adapter is None else {"model": adapter}
