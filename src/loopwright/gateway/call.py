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
    """A request in canonical form. `previous` names an earlier answer that `messages` continue. `instructions` says
    that the first message is a preamble, which a continuation does not inherit. `form` is what the answer must look
    like. `echo` is the part of the request that the dialect needs to write its answer."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    wishes: Wishes = Wishes()
    model: str = ""
    stream: bool = False
    samples: int = 1
    logprobs: bool = False
    previous: str | None = None
    instructions: bool = False
    form: AnswerForm | None = None
    echo: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A sampled token as text, for clients that ask how likely it was."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's answer. `id` is unique. `stop` is the stop string that ended it. `cached_tokens` tokens of the prompt
    were already in an earlier call of the same chain."""

    id: str
    created: int
    parsed: Parsed
    finish: FinishReason
    stop: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()

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
