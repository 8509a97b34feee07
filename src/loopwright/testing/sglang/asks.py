"""What a caller of /generate asks for, and how it is refused when it is malformed."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from loopwright.testing.sglang.radix import Key


class RefusedValueError(ValueError):
    """A value that SGLang refuses: 400 with `{"error": {"message"}}`, unless it says another status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class SchemaError(Exception):
    """A body that does not have the schema: 400 (never 422) with `{"object": "error", ...}`."""


NOT_COMPUTED = {
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "min_new_tokens": (0,),
    "n": (1,),
    "stop_regex": (None,),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "structural_tag": (None,),
    "logit_bias": (None,),
}
"""Sampling settings that SGLang has and the fake does not compute, with the values that switch them off. Any other
value is a 501, so that no test passes by accident."""


@dataclass(slots=True)
class SamplingParams:
    """SGLang's sampling parameters. An unknown name is a TypeError, which SGLang does not catch: 500."""

    max_new_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    n: int = 1
    stop: Any = None
    stop_token_ids: Any = None
    stop_regex: Any = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    structural_tag: Any = None
    logit_bias: Any = None
    sampling_seed: int | None = None
    stream_interval: int | None = None
    custom_params: Any = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise RefusedValueError(f"temperature must be a non-negative finite number, got {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise RefusedValueError(f"top_p must be in (0, 1], got {self.top_p}.")
        if not 0 <= self.min_p <= 1:
            raise RefusedValueError(f"min_p must be in [0, 1], got {self.min_p}.")
        if self.top_k != -1 and self.top_k < 1:
            raise RefusedValueError(f"top_k must be -1 (disable) or at least 1, got {self.top_k}.")
        if self.max_new_tokens is not None and self.max_new_tokens < 0:
            raise RefusedValueError(f"max_new_tokens must be at least 0, got {self.max_new_tokens}.")
        for name, off in NOT_COMPUTED.items():
            if getattr(self, name) not in off:
                raise RefusedValueError(f"the fake of SGLang does not compute {name}", 501)
        if self.temperature < 1e-6:
            self.temperature, self.top_k = 1.0, 1

    @property
    def stops(self) -> Sequence[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())


@dataclass(slots=True)
class GenerateAsk:
    """One request: `ids` in, `sampling` how."""

    rid: str
    ids: list[int]
    sampling: SamplingParams
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: Any = None
    return_text_in_logprobs: bool = False
    stream: bool = False
    return_prompt_token_ids: bool = False
    extra_key: str | None = None
    cache_salt: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.extra_key, self.cache_salt


PLAIN = {one.name for one in fields(GenerateAsk)} - {"rid", "ids", "sampling", "asked"}
KINDS: Mapping[str, type | tuple[type, ...]] = {
    "return_logprob": bool,
    "logprob_start_len": int,
    "top_logprobs_num": int,
    "return_text_in_logprobs": bool,
    "stream": bool,
    "return_prompt_token_ids": bool,
    "extra_key": str,
    "cache_salt": str,
}
NOT_ANSWERED = ("return_routed_experts", "return_sampling_mask", "lora_path", "session_id", "return_hidden_states")


def asks_from_json(body: Any, encode: Any) -> tuple[list[GenerateAsk], bool]:
    """The requests of a body, and whether they are a batch. Unknown fields are ignored."""
    if not isinstance(body, dict):
        raise SchemaError("the body is no JSON object")
    rows, is_batch = _rows(body, encode)
    plain = {name: body[name] for name in PLAIN if body.get(name) is not None}
    for name, value in plain.items():
        kind = KINDS.get(name)
        if kind is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise SchemaError(f"{name}: {value!r} is of another type")
    for name in NOT_ANSWERED:
        if body.get(name):
            raise RefusedValueError(f"the fake of SGLang does not know {name}", 501)
    given = body.get("sampling_params")
    if given is not None and not isinstance(given, dict):
        raise SchemaError("sampling_params: not an object")
    names = _names(body.get("rid"), len(rows), is_batch)
    made = [
        GenerateAsk(rid, list(ids), SamplingParams(**(given or {})), asked=body, **plain)
        for rid, ids in zip(names, rows, strict=True)
    ]
    return made, is_batch


def _rows(body: Mapping[str, Any], encode: Any) -> tuple[list[list[int]], bool]:
    ids, text = body.get("input_ids"), body.get("text")
    if (ids is None) == (text is None):
        raise RefusedValueError("Either text, input_ids or input_embeds should be provided.")
    if text is not None:
        return ([encode(text)], False) if isinstance(text, str) else ([encode(one) for one in text], True)
    if not isinstance(ids, list):
        raise SchemaError("input_ids: not a list")
    if not ids:
        raise RefusedValueError("input_ids cannot be empty.")
    is_batch = isinstance(ids[0], list)
    rows = ids if is_batch else [ids]
    if not all(row and all(type(token) is int for token in row) for row in rows):
        raise SchemaError("input_ids: not a list of whole numbers")
    return rows, is_batch


def _names(rid: Any, count: int, is_batch: bool) -> list[str]:
    if rid is None:
        return [uuid.uuid4().hex for _ in range(count)]
    if isinstance(rid, str):
        return [f"{rid}_{i}" for i in range(count)] if is_batch else [rid]
    if isinstance(rid, list) and len(rid) == count and all(isinstance(one, str) for one in rid):
        return rid
    raise SchemaError("rid: not a string")
