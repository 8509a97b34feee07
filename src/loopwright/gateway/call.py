"""One model call, independent of its dialect: the request and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loopwright.types import AnswerForm, FinishReason, Message, Parsed, Tool


@dataclass(frozen=True, slots=True)
class Wishes:
    """How the agent wants its answer to be sampled. None means that it did not say. `others` are other settings, as
    they were sent: those that have no effect here, and those that ask for a form of answer.

    In a training session the run decides, and wishes are only recorded (T8); `max_tokens` and `stop` always count.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """A request in canonical form. `token_ids` asks for the ids of the prompt and of the answer. `previous` names an
    earlier answer that `messages` continue. `alternatives` is how many of the likeliest tokens to tell with the logprob
    of each sampled one, and `alternatives_field` the field that asks for them. `begun` is the beginning of the answer,
    which the agent wrote. `instructions` says that the first message is a preamble, which a continuation does not
    inherit. `form` is what the answer must look like. `echo` is the part of the request that the dialect needs to write
    its answer."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    wishes: Wishes = Wishes()
    model: str = ""
    stream: bool = False
    samples: int = 1
    begun: str = ""
    logprobs: bool = False
    alternatives: int = 0
    alternatives_field: str = "top_logprobs"
    token_ids: bool = False
    previous: str | None = None
    instructions: bool = False
    form: AnswerForm | None = None
    echo: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A sampled token as text, for clients that ask how likely it was. `likeliest` are the texts and logprobs of the
    likeliest tokens in its place, if the call asked for them."""

    text: str
    logprob: float
    likeliest: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's answer. `id` is unique. `stop` is the stop string that ended it. `cached_tokens` tokens of the prompt
    were already in an earlier call of the same chain. `prompt_ids` and `ids` are there if the call asked for them: what
    the engine received, and all that it sampled."""

    id: str
    created: int
    parsed: Parsed
    finish: FinishReason
    stop: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()

    @property
    def calls_tools(self) -> bool:
        return bool(self.parsed.tool_calls) and self.finish is not FinishReason.LENGTH


def tool_call_id(answer: str, index: int) -> str:
    """The id of a tool call for which the model wrote none."""
    return f"call_{answer}{index}"


def sample_id(first: str, sample: int) -> str:
    """The id of one of several answers to one call."""
    return f"{first}s{sample}" if sample else first


def whole_answer(sample: str) -> str:
    """The id of the first sample of the same answer."""
    return sample.partition("s")[0]
