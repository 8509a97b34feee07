"""Requests and generations in the form of vLLM's generate route. An encoded value decodes to an equal value.

Logprobs keep every bit, because Python writes floats so that it reads back the same value. Versions are sent as spans
of tokens. A value that does not fit the protocol is refused, and the error names the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from loopwright.engines.http.fields import Fields, malformed
from loopwright.errors import ConfigError, LoopwrightError, RefusedError
from loopwright.serve.errors import error_body
from loopwright.types import FinishReason, GenerateRequest, Generation, Sampling, TensorSpec, WeightFile
from loopwright.types.sampling import PART_TOKENS

GENERATE = "/inference/v1/generate"
HELD = "held"
HELD_SECONDS = "held_seconds"
FIRST_WEIGHTS = "default"
"""vLLM's name for the weights that it was started with."""
FINISHES = tuple(FinishReason)
NUMBERS = frozenset({int, float})

Json = Mapping[str, Any]


def request_to_json(request: GenerateRequest, *, seeded: bool = True) -> Json:
    sampling = request.sampling
    return {
        "request_id": request.id,
        "token_ids": request.prompt_ids,
        "sampling_params": {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "seed": sampling.seed if seeded else None,
            "stop": sampling.stop,
            "stop_token_ids": sampling.stop_token_ids,
            "logprobs": 1,
        },
        "sampled_before": request.sampled_before,
        "part_tokens": request.part_tokens,
        "resumable": request.resumable,
        "seconds": request.seconds,
    }


def request_from_json(body: Any) -> GenerateRequest:
    """Only `token_ids` is required. Missing fields get the defaults of `Sampling`."""
    fields = Fields(body, "the body")
    asked = Fields(body.get("sampling_params", {}), "sampling_params")
    default = Sampling()
    try:
        sampling = Sampling(
            temperature=asked.number("temperature", default.temperature),
            max_new_tokens=asked.integer("max_tokens", default.max_new_tokens),
            # vLLM switches top-k off with -1.
            top_k=max(0, asked.integer("top_k", default.top_k)),
            top_p=asked.number("top_p", default.top_p),
            stop_token_ids=asked.integers("stop_token_ids", ()),
            stop=asked.strings("stop", ()),
            seed=asked.integer("seed", default.seed),
        )
    except ConfigError as error:
        raise RefusedError(error.message, remedy=error.remedy, status=400) from error
    prompt, before = fields.integers("token_ids"), fields.integer("sampled_before", 0)
    if not 0 <= before <= len(prompt):
        raise malformed("the body", "sampled_before", before, f"a number from 0 to {len(prompt)}")
    part, seconds = max(1, fields.integer("part_tokens", PART_TOKENS)), fields.number("seconds", math.inf)
    if not seconds >= 0:
        raise malformed("the body", "seconds", seconds, "0 or more")
    request = GenerateRequest(
        fields.string("request_id", ""),
        prompt,
        sampling,
        resumable=fields.boolean("resumable", False),
        sampled_before=before,
        part_tokens=part,
    )
    return request.within(seconds)


def generation_to_json(generation: Generation, *, ended: bool = True) -> Json:
    """One answer, or a part of one if it has not `ended`."""
    choice = {
        "index": 0,
        "token_ids": generation.ids,
        "logprobs": {
            "content": [
                {"token_id": token, "logprob": logprob}
                for token, logprob in zip(generation.ids, generation.logprobs, strict=True)
            ]
        },
        "weight_versions": spans_of(generation.versions),
        "finish_reason": generation.finish if ended else None,
    }
    body = {"choices": [choice]}
    return body if generation.held is None else {**body, HELD: generation.held}


def generation_from_json(body: Any, *, before: int = 0) -> tuple[Generation, bool]:
    """The answer or part, and whether the answer has ended. A part has `finish = abort`, and comes after `before`
    earlier tokens."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or len(choices) != 1:
        raise malformed("the answer", "choices", choices, "a list of one choice")
    choice = Fields(choices[0], "the choice")
    ids = choice.integers("token_ids")
    content = choice.mapping("logprobs").get("content")
    if not isinstance(content, list) or len(content) != len(ids):
        raise malformed("the choice", "logprobs", content, f"{len(ids)} entries, one for each token")
    logprobs = _logprobs(content)
    finish = choices[0].get("finish_reason")
    if finish is not None and finish not in FINISHES:
        raise malformed("the choice", "finish_reason", finish, "one of " + ", ".join(FinishReason))
    spans = choices[0].get("weight_versions")
    versions = (0,) * len(ids) if spans is None and finish is None else _versions(spans, len(ids), before)
    ended = FinishReason(finish or FinishReason.ABORT)
    return Generation(ids, logprobs, versions, ended, held_from_json(body)), finish is not None


def held_from_json(body: Json) -> tuple[float, float] | None:
    """How long the call was held, as `Generation.held` tells it. None if the other side does not count it."""
    match body.get(HELD):
        case [int() | float() as began, int() | float() as ended]:
            return float(began), float(ended)
    return None


def held_error_to_json(error: LoopwrightError) -> Json:
    """The error, and how long its call was held, if that was counted."""
    held = error.facts.get(HELD)
    return error_body(error) if held is None else {**error_body(error), HELD: held}


def state_to_json(version: int, held: Callable[[], float] | None) -> Json:
    """What an engine says of itself: the version that samples now, and the reading of the clock of held seconds, if it
    has one."""
    return {"version": version} if held is None else {"version": version, HELD_SECONDS: held()}


def _logprobs(content: Sequence[Any]) -> tuple[float, ...]:
    # Read all at once: there is one entry per token, and checking each field would take longer than the rest.
    try:
        logprobs = tuple([entry["logprob"] for entry in content])
    except (TypeError, KeyError, IndexError):
        logprobs = (None,)
    kinds = set(map(type, logprobs))
    if not kinds <= NUMBERS:
        raise malformed("logprobs", "logprob", content, "a number, in every entry")
    return tuple(map(float, logprobs)) if int in kinds else logprobs


def spans_of(versions: Sequence[int]) -> Sequence[Json]:
    spans, start = [], 0
    for version, run in groupby(versions):
        end = start + sum(1 for _ in run)
        spans.append({"version": version, "start": start, "end": end})
        start = end
    return spans


def weights_to_json(version: int, file: WeightFile | None) -> Json:
    if file is None:
        return {"version": version}
    tensors = {name: {"dtype": spec.dtype, "shape": spec.shape} for name, spec in file.tensors.items()}
    manifest = {"path": file.path, "bytes": file.bytes, "tensors": tensors}
    return {"version": version, "manifest": manifest, "checksum": file.checksum}


def weights_from_json(body: Any) -> tuple[int, WeightFile | None]:
    """The version, and the file with its weights. None if the engine's parameters were changed in place."""
    fields = Fields(body, "the body")
    version = fields.integer("version")
    if "manifest" not in body:
        return version, None
    manifest = Fields(fields.mapping("manifest"), "the manifest")
    tensors = {
        name: TensorSpec(tensor.string("dtype"), tensor.integers("shape"))
        for name, described in manifest.mapping("tensors").items()
        for tensor in [Fields(described, f"tensor {name!r}")]
    }
    path, size = manifest.string("path"), manifest.integer("bytes")
    return version, WeightFile(path, size, fields.string("checksum"), tensors)


def _versions(spans: Any, tokens: int, before: int) -> tuple[int, ...]:
    """The version of each token. Our engine sends the versions with every part. vLLM sends them at the end, for the
    whole answer; until then its weights are assumed to be those that it was started with."""
    versions: list[int] = []
    for span in spans if isinstance(spans, list) else ():
        fields = Fields(span, "weight_versions")
        if fields.integer("start") != len(versions):
            break
        version = 0 if span.get("version") == FIRST_WEIGHTS else fields.integer("version")
        versions += [version] * (fields.integer("end") - len(versions))
    if len(versions) == before + tokens and not any(versions[:before]):
        return tuple(versions[before:])
    if len(versions) != tokens:
        raise malformed("the choice", "weight_versions", spans, f"spans that cover {tokens} tokens")
    return tuple(versions)
