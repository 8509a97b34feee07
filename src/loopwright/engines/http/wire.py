"""Requests and generations in the form of vLLM's generate route. An encoded value decodes to an equal value.

Logprobs keep every bit, because Python writes floats so that it reads back the same value. Versions are sent as spans
of tokens. A value that does not fit the protocol is refused, and the error names the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, repeat
from typing import Any

from loopwright.engines.http.fields import NUMBERS, Fields, malformed
from loopwright.errors import ConfigError, EngineError, LoopwrightError, RefusedError
from loopwright.serve.errors import error_body
from loopwright.types import (
    IN_PLACE,
    BroadcastBackend,
    Constraint,
    FinishReason,
    GenerateRequest,
    Generation,
    GrammarKind,
    InPlace,
    ProbeAnswer,
    Sampling,
    TensorSpec,
    WeightBroadcast,
    WeightFile,
    WeightUpdate,
)
from loopwright.types.sampling import MOST_ALTERNATIVES, PART_TOKENS, Likeliest
from loopwright.types.spans import Spans, fits

GENERATE = "/inference/v1/generate"
PROBE = "/probe"
HELD = "held"
HELD_SECONDS = "held_seconds"
FINISHES = tuple(FinishReason)

Json = Mapping[str, Any]


def request_to_json(request: GenerateRequest) -> Json:
    sampling = request.sampling
    return {
        "request_id": request.id,
        "token_ids": request.prompt_ids,
        "sampling_params": {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stop": sampling.stop,
            "stop_token_ids": sampling.stop_token_ids,
            "logprobs": 1,
        },
        "sampled_before": request.sampled_before,
        "part_tokens": request.part_tokens,
        "resumable": request.resumable,
        "seconds": request.seconds,
        "affinity": request.affinity,
        "constraint": request.constraint and {"kind": request.constraint.kind, "text": request.constraint.text},
        "alternatives": request.alternatives,
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
    alternatives = fields.integer("alternatives", 0)
    if not 0 <= alternatives <= MOST_ALTERNATIVES:
        raise malformed("the body", "alternatives", alternatives, f"a number from 0 to {MOST_ALTERNATIVES}")
    request = GenerateRequest(
        fields.string("request_id", ""),
        prompt,
        sampling,
        resumable=fields.boolean("resumable", False),
        sampled_before=before,
        part_tokens=part,
        affinity=fields.string("affinity", ""),
        constraint=_constraint_from_json(body.get("constraint")),
        alternatives=alternatives,
    )
    return request.within(seconds)


def _constraint_from_json(said: Any) -> Constraint | None:
    if said is None:
        return None
    fields = Fields(said, "the constraint")
    kind = fields.string("kind")
    if kind not in tuple(GrammarKind):
        raise malformed("the constraint", "kind", kind, "one of " + ", ".join(GrammarKind))
    return Constraint(GrammarKind(kind), fields.string("text"))


def generation_to_json(generation: Generation, *, ended: bool = True) -> Json:
    """One answer, or a part of one if it has not `ended`."""
    choice = {
        "index": 0,
        "token_ids": generation.ids,
        "logprobs": {
            "content": [
                {"token_id": token, "logprob": logprob, **more}
                for token, logprob, more in zip(generation.ids, generation.logprobs, _told(generation), strict=True)
            ]
        },
        "weight_versions": spans_of(generation.versions),
        "constrained": generation.constrained,
        "finish_reason": generation.finish if ended else None,
    }
    body = {"choices": [choice]}
    return body if generation.held is None else {**body, HELD: generation.held}


def _told(generation: Generation) -> Iterable[Json]:
    """What else is told of each token."""
    if not generation.alternatives:
        return repeat({}, len(generation.ids))
    return (
        {"top_logprobs": [{"token_id": token, "logprob": logprob} for token, logprob in likeliest]}
        for likeliest in generation.alternatives
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer or a part of one, as vLLM's route and ours write it. `finish` is None if the answer goes on. `spans`
    are the versions of its tokens, as each side names them. `constrained` is None if the other side does not say it.
    `alternatives` are there if they were asked for."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason | None
    spans: Any
    constrained: Spans | None = None
    alternatives: tuple[Likeliest, ...] = ()


def choice_from_json(body: Any, alternatives: int = 0) -> Choice:
    """`alternatives` is how many the request asked for."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or len(choices) != 1:
        raise malformed("the answer", "choices", choices, "a list of one choice")
    choice = Fields(choices[0], "the choice")
    ids = choice.integers("token_ids")
    content = choice.mapping("logprobs").get("content")
    if not isinstance(content, list) or len(content) != len(ids):
        raise malformed("the choice", "logprobs", content, f"{len(ids)} entries, one for each token")
    finish = choices[0].get("finish_reason")
    if finish is not None and finish not in FINISHES:
        raise malformed("the choice", "finish_reason", finish, "one of " + ", ".join(FinishReason))
    ended = None if finish is None else FinishReason(finish)
    spans = _spans(choices[0].get("constrained"), len(ids))
    likeliest = tuple(_likeliest(entry, alternatives) for entry in content) if alternatives else ()
    return Choice(ids, _logprobs(content), ended, choices[0].get("weight_versions"), spans, likeliest)


def generation_from_json(body: Any, asked: GenerateRequest | None = None) -> tuple[Generation, bool]:
    """The answer or part, and whether the answer has ended. A part has `finish = abort`. `asked` is the request: an
    older server would ignore its constraint and the alternatives that it asks for."""
    choice = choice_from_json(body, asked.alternatives if asked is not None else 0)
    if asked is not None and asked.constraint is not None and choice.constrained is None:
        raise malformed("the choice", "constrained", None, "spans: an older server ignores constraints, so update it")
    versions = _versions(choice.spans, len(choice.ids))
    finish = choice.finish or FinishReason.ABORT
    streams, spans = (choice.ids, choice.logprobs, versions), choice.constrained or ()
    sampled = Generation(*streams, finish, held_from_json(body), spans, choice.alternatives)
    return sampled, choice.finish is not None


@contextmanager
def answer_read() -> Iterator[None]:
    """What is refused in the block is the engine's answer, not the caller's request."""
    try:
        yield
    except RefusedError as error:
        raise EngineError(f"the engine's answer cannot be read: {error.message}", remedy=error.remedy) from error


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


def _likeliest(entry: Mapping[str, Any], asked: int) -> Likeliest:
    """The likeliest tokens in the place of one. A server that does not tell them would leave a gap."""
    match entry.get("top_logprobs"):
        case [_, *_] as told:
            fields = [Fields(one, "top_logprobs") for one in told[:asked]]
            return tuple((one.integer("token_id"), one.number("logprob")) for one in fields)
        case told:
            raise malformed(
                "logprobs", "top_logprobs", told, "the likeliest tokens: an older server does not tell them"
            )


def spans_of(versions: Sequence[int]) -> Sequence[Json]:
    spans, start = [], 0
    for version, run in groupby(versions):
        end = start + sum(1 for _ in run)
        spans.append({"version": version, "start": start, "end": end})
        start = end
    return spans


def probe_to_json(answer: ProbeAnswer) -> Json:
    return {"prompt_logprobs": answer.prompt_logprobs, "sampled": generation_to_json(answer.sampled)}


def probe_from_json(body: Any) -> ProbeAnswer:
    fields = Fields(body, "the answer")
    sampled, _ = generation_from_json(fields.mapping("sampled"))
    return ProbeAnswer(fields.numbers("prompt_logprobs"), sampled)


def update_to_json(version: int, update: WeightUpdate) -> Json:
    match update:
        case InPlace():
            return {"version": version, "in_place": True}
        case WeightFile():
            return {"version": version, "file": file_to_json(update)}
        case WeightBroadcast():
            return {"version": version, "file": file_to_json(update.file), "broadcast": broadcast_to_json(update)}


def file_to_json(file: WeightFile) -> Json:
    tensors = {name: {"dtype": spec.dtype, "shape": spec.shape} for name, spec in file.tensors.items()}
    return {"path": file.path, "bytes": file.bytes, "checksum": file.checksum, "tensors": tensors}


def broadcast_to_json(update: WeightBroadcast) -> Json:
    names = ("host", "port", "name", "size", "backend", "seconds", "bucket_bytes")
    return {name: getattr(update, name) for name in names}


def update_from_json(body: Any) -> tuple[int, WeightUpdate]:
    """The version, and how its weights come."""
    fields = Fields(body, "the body")
    version = fields.integer("version")
    if body.get("in_place") is True:
        return version, IN_PLACE
    file = _file_from_json(Fields(fields.mapping("file"), "the file"))
    return version, _broadcast_from_json(file, fields.mapping("broadcast")) if "broadcast" in body else file


def _file_from_json(file: Fields) -> WeightFile:
    tensors = {
        name: TensorSpec(tensor.string("dtype"), tensor.integers("shape"))
        for name, described in file.mapping("tensors").items()
        for tensor in [Fields(described, f"tensor {name!r}")]
    }
    return WeightFile(file.string("path"), file.integer("bytes"), file.string("checksum"), tensors)


def _broadcast_from_json(file: WeightFile, body: Json) -> WeightBroadcast:
    fields = Fields(body, "the broadcast")
    backend = fields.string("backend")
    if backend not in tuple(BroadcastBackend):
        raise malformed("the broadcast", "backend", backend, "one of " + ", ".join(BroadcastBackend))
    return WeightBroadcast(
        file,
        fields.string("host"),
        fields.integer("port"),
        fields.string("name"),
        fields.integer("size"),
        BroadcastBackend(backend),
        fields.number("seconds"),
        fields.integer("bucket_bytes"),
    )


def _spans(said: Any, tokens: int) -> Spans | None:
    if not said:
        return None if said is None else ()
    match said:
        case [*pairs] if all(isinstance(pair, list) and [type(n) for n in pair] == [int, int] for pair in pairs):
            spans = tuple((begin, end) for begin, end in pairs)
            if fits(spans, tokens):
                return spans
    raise malformed("the choice", "constrained", said, f"spans within {tokens} tokens")


def _versions(spans: Any, tokens: int) -> tuple[int, ...]:
    """The version of each token."""
    versions: list[int] = []
    for span in spans if isinstance(spans, list) else ():
        fields = Fields(span, "weight_versions")
        if fields.integer("start") != len(versions):
            break
        versions += [fields.integer("version")] * (fields.integer("end") - len(versions))
    if len(versions) != tokens:
        raise malformed("the choice", "weight_versions", spans, f"spans that cover {tokens} tokens")
    return tuple(versions)
