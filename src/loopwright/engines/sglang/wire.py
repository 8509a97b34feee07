"""Requests and answers in the words of SGLang's /generate (0.5.18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loopwright.engines.http.fields import Fields, malformed
from loopwright.errors import EngineError
from loopwright.types import FinishReason, GenerateRequest

GENERATE = "/generate"
ABORTED = frozenset({"Aborted", "Abort in waiting queue"})
"""What SGLang says of requests that somebody aborted. Any other abort is an error of the server."""
NUMBERS = frozenset({int, float})


@dataclass(frozen=True, slots=True)
class SglangPart:
    """New tokens of an answer, the label of the weights when it was told, and why it ended, if it did. `matched` is the
    stop token or stop string."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    label: str
    finish: FinishReason | None
    matched: int | str | None = None


def request_to_sglang(request: GenerateRequest, name: str, extra_key: str | None) -> Mapping[str, Any]:
    """Without a seed: SGLang uses it only if it was started for deterministic inference."""
    sampling = request.sampling
    return {
        "rid": name,
        "input_ids": request.prompt_ids,
        "stream": True,
        "return_logprob": True,
        "sampling_params": {
            "max_new_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1,
            "top_p": sampling.top_p,
            "stop": sampling.stop,
            "stop_token_ids": sampling.stop_token_ids,
            # It switches off the end token of the model, and the stop tokens of the request with it.
            "ignore_eos": not sampling.stop_token_ids,
            "stream_interval": request.part_tokens,
        },
        **_keyed(extra_key),
    }


def score_to_sglang(request: GenerateRequest, name: str, extra_key: str | None) -> Mapping[str, Any]:
    """Asks for the logprobs of the prompt, which are those of temperature 1. At least one token is sampled after it."""
    return {
        "rid": name,
        "input_ids": request.prompt_ids,
        "return_logprob": True,
        "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 1, "ignore_eos": True},
        **_keyed(extra_key),
    }


def part_from_sglang(body: Any, known: Sequence[int], *, incremental: bool) -> SglangPart:
    """The tokens of an event after the `known` ones. Each event repeats the whole answer, unless streams are
    `incremental`."""
    answer = Fields(body, "the answer")
    meta = answer.mapping("meta_info")
    finish, matched, was_queued = _finish(meta.get("finish_reason"))
    ids, logprobs = _triples(meta.get("output_token_logprobs"), "output_token_logprobs")
    told = answer.integers("output_ids")
    if finish is FinishReason.LENGTH and not told and not known:
        # If the context has no room, one token is computed all the same. It is not part of the answer.
        ids, logprobs = (), ()
    elif not was_queued and ids != told:
        raise malformed("meta_info", "output_token_logprobs", ids, f"those of the {len(told)} tokens of the answer")
    # What was aborted in the queue is told as a whole, with all of its logprobs and the last of its ids.
    if was_queued or not incremental:
        if ids[: len(known)] != tuple(known):
            raise malformed("the answer", "output_ids", ids, f"the {len(known)} tokens of the event before, and more")
        ids, logprobs = ids[len(known) :], logprobs[len(known) :]
    return SglangPart(ids, logprobs, Fields(meta, "meta_info").string("weight_version"), finish, matched)


def prompt_logprobs_from_sglang(body: Any, prompt: Sequence[int]) -> tuple[tuple[float, ...], str]:
    """The logprob of each prompt token but the first, and the label of the weights."""
    meta = Fields(body, "the answer").mapping("meta_info")
    entries = meta.get("input_token_logprobs")
    if not isinstance(entries, list) or len(entries) != len(prompt):
        raise malformed("meta_info", "input_token_logprobs", entries, f"{len(prompt)} entries, one for each token")
    ids, logprobs = _triples(entries[1:], "input_token_logprobs")
    if ids != tuple(prompt[1:]):
        raise malformed("meta_info", "input_token_logprobs", ids, "those of the prompt")
    return logprobs, Fields(meta, "meta_info").string("weight_version")


def _triples(entries: Any, name: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The ids and logprobs of `[logprob, id, text]` entries."""
    # Read all at once: there is one entry per token, and checking each field would take longer than the rest.
    try:
        logprobs = tuple([entry[0] for entry in entries])
        ids = tuple([entry[1] for entry in entries])
    except (TypeError, KeyError, IndexError):
        raise malformed("meta_info", name, entries, "a list of [logprob, id, text]") from None
    if not NUMBERS.issuperset(map(type, logprobs)) or not {int}.issuperset(map(type, ids)):
        raise malformed("meta_info", name, entries, "a number and a token id in every entry")
    return ids, tuple(map(float, logprobs))


def _finish(said: Any) -> tuple[FinishReason | None, int | str | None, bool]:
    """Why the answer ended, what it stopped at, and whether it was aborted in the queue."""
    match said:
        case None:
            return None, None, False
        case {"type": "stop", "matched": int() | str() as matched}:
            return FinishReason.STOP, matched, False
        case {"type": "length"}:
            return FinishReason.LENGTH, None, False
        case {"type": "abort", "message": message} if message in ABORTED:
            return FinishReason.ABORT, None, message != "Aborted"
        case {"type": "abort", "message": message}:
            raise EngineError(f"the server gave up a request: {message}", remedy="see the server's log")
    raise malformed("meta_info", "finish_reason", said, "null, or a stop, a length or an abort")


def _keyed(extra_key: str | None) -> Mapping[str, str]:
    return {} if extra_key is None else {"extra_key": extra_key}
