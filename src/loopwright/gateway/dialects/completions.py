"""OpenAI's older Completions: a text, or token ids, that the model continues. There is no chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from loopwright.errors import RefusedError
from loopwright.gateway.call import Answer, Call, TokenLogprob, Wishes
from loopwright.gateway.dialects.chat_words import chat_usage, finish_reason, prompt_token_ids, token_ids
from loopwright.gateway.dialects.dialect import (
    OF_NO_MATTER,
    Head,
    Recall,
    Stream,
    alternatives_of,
    answers_asked,
    event,
    nothing,
)
from loopwright.gateway.dialects.forms import COMPLETION_FORM, completion_form, refuse_guided
from loopwright.gateway.dialects.openai_errors import openai_error
from loopwright.gateway.reading import chosen, count, flag, ignored, model_name, number, strings
from loopwright.gateway.refusals import invalid
from loopwright.render.recording.fingerprint import TEXT
from loopwright.types import ContentDelta, Delta, Message

MOST_SAMPLES = 128
LARGEST_ID = 1 << 31
DONE = b"data: [DONE]\n\n"
UNGRANTED = ("logit_bias", "frequency_penalty", "presence_penalty", "add_special_tokens")
REFUSED = ("suffix", "echo", "best_of", "top_logprobs", "prompt_logprobs", "prompt_embeds")
"""What would change the answer's form. The likeliest tokens are asked for with `logprobs`."""
GRANTED = (
    *("prompt", "model", "stream", "stream_options", "n", "return_token_ids", "max_tokens", "stop"),
    *("temperature", "top_p", "top_k", "seed"),
)
WISHES = (*COMPLETION_FORM, *UNGRANTED, "logprobs")
KNOWN = frozenset((*GRANTED, *WISHES, *REFUSED, *OF_NO_MATTER))


class Completions:
    """A `Dialect`."""

    name = "openai"

    def read(self, body: Mapping[str, Any], recall: Recall = nothing) -> Call:
        for name in REFUSED:
            if body.get(name) and not (name == "best_of" and body[name] == (body.get("n") or 1)):
                raise invalid(name, "it is not granted here", remedy="omit it; `logprobs` gives those of the answer")
        refuse_guided(body)
        options = body.get("stream_options")
        return Call(
            messages=(_prompt(body.get("prompt")),),
            form=completion_form(body),
            wishes=_wishes(body),
            model=model_name(body),
            stream=flag(body, "stream"),
            samples=answers_asked(body, "n", MOST_SAMPLES),
            logprobs=body.get("logprobs") is not None and body["logprobs"] is not False,
            alternatives=0 if body.get("logprobs") is False else alternatives_of(body, "logprobs"),
            alternatives_field="logprobs",
            token_ids=flag(body, "return_token_ids"),
            echo={"usage": isinstance(options, dict) and bool(options.get("include_usage"))},
        )

    def reply(self, call: Call, answers: Sequence[Answer]) -> Mapping[str, Any]:
        choices = [_choice(index, answer.parsed.content, _ending(call, answer)) for index, answer in enumerate(answers)]
        return {**_frame(call, answers[0].id, answers[0].created), "choices": choices, "usage": chat_usage(answers)}

    def stream(self, call: Call, head: Head) -> Stream:
        return CompletionStream(call, head)

    def error(self, error: RefusedError) -> Mapping[str, Any]:
        return openai_error(error)


class CompletionStream:
    """A `Stream`."""

    def __init__(self, call: Call, head: Head) -> None:
        self._call = call
        self._head = head

    def start(self) -> bytes:
        return b""

    def delta(self, sample: int, delta: Delta) -> bytes:
        return self._event([_choice(sample, delta.text)]) if isinstance(delta, ContentDelta) else b""

    def end(self, answers: Sequence[Answer]) -> bytes:
        said = [self._event([_choice(n, "", _ending(self._call, answer))]) for n, answer in enumerate(answers)]
        if self._call.echo.get("usage"):
            said.append(self._event([], usage=chat_usage(answers)))
        return b"".join((*said, DONE))

    def failed(self, error: RefusedError) -> bytes:
        return event(openai_error(error)) + DONE

    def _event(self, choices: Sequence[Mapping[str, Any]], **more: Any) -> bytes:
        return event({**_frame(self._call, self._head.id, self._head.created), "choices": choices, **more})


def _prompt(value: Any) -> Message:
    """One text, or the ids of one. A list of one prompt counts as that prompt."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return {"role": TEXT, "content": value}
    if isinstance(value, list) and value and all(type(one) is int and 0 <= one < LARGEST_ID for one in value):
        return {"role": TEXT, "content": "", "ids": tuple(value)}
    raise invalid("prompt", "expected one text, or the token ids of one", remedy="send each prompt in its own request")


def _wishes(body: Mapping[str, Any]) -> Wishes:
    return Wishes(
        max_tokens=count(body, "max_tokens"),
        stop=strings(body, "stop"),
        temperature=number(body, "temperature", least=0, most=2),
        top_p=number(body, "top_p", least=0, most=1),
        top_k=count(body, "top_k", least=-1),
        seed=count(body, "seed", least=-(1 << 63), most=1 << 63),
        others=chosen(body, WISHES) | ignored(body, KNOWN),
    )


def _frame(call: Call, id: str, created: int) -> dict[str, Any]:
    return {"id": f"cmpl-{id}", "object": "text_completion", "created": created, "model": call.model}


def _choice(index: int, text: str, ending: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, **(ending or {"logprobs": None, "finish_reason": None})}


def _ending(call: Call, answer: Answer) -> dict[str, Any]:
    said = {
        "logprobs": _logprobs(call, answer.logprobs) if call.logprobs else None,
        "finish_reason": finish_reason(answer),
    }
    return said | prompt_token_ids(call, answer.prompt_ids) | token_ids(call, answer.ids)


def _logprobs(call: Call, tokens: Sequence[TokenLogprob]) -> Mapping[str, Any]:
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_likeliest(token) for token in tokens] if call.alternatives else None,
        "text_offset": list(accumulate((len(token.text) for token in tokens), initial=0))[: len(tokens)],
    }


def _likeliest(token: TokenLogprob) -> Mapping[str, float]:
    """The likeliest texts in the place of a token, and its own. Of tokens that look alike the likeliest counts."""
    told: dict[str, float] = {}
    for text, logprob in (*token.likeliest, (token.text, token.logprob)):
        told.setdefault(text, logprob)
    return told
