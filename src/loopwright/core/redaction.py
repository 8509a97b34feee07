"""Removes known secrets from texts before the texts are stored or shown (S3).

A secret is found as it is and as programs write it: in JSON, in a URL, in base64 (as HTTP sends passwords), and with
its end cut off, because messages are shortened. Keys that Loopwright makes are found by their form. Secrets of less
than 8 characters are not searched for, because ordinary words would be removed from ordinary texts.
"""

from __future__ import annotations

import base64
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any
from urllib.parse import quote, quote_plus

from loopwright.types import Episode, Failed, ProgramOutput, Reward, Rollout, Scored
from loopwright.types.reward import MOST_EVIDENCE

SHORTEST_SECRET = 8
MARK = "[redacted]"
OWN_KEY_PREFIX = "lwk_"
"""Every key that Loopwright makes begins with this."""
OWN_KEY = re.compile(OWN_KEY_PREFIX + r"[A-Za-z0-9_-]{8,}")
CUT_HERE = ("...", "…")
"""The marks of a place where a text was cut. A text may also be cut at its end without a mark."""

SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")


def names_a_secret(variable: str) -> bool:
    """Whether an environment variable of this name is likely to hold a secret."""
    return any(word in variable.upper() for word in SECRET_WORDS) and not variable.startswith("TOKENIZERS_")


class Redactor:
    """Removes `secrets` from texts. A text without secrets is returned unchanged; this costs one search."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {form for secret in secrets if len(secret) >= SHORTEST_SECRET for form in _forms(secret)}
        # The longest come first, because one form may be a part of another.
        self._forms = sorted(known, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        if OWN_KEY_PREFIX in text:
            text = OWN_KEY.sub(MARK, text)
        for form in self._forms:
            if form[:SHORTEST_SECRET] in text:
                text = _without_beginnings(text.replace(form, MARK), form)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value with all its texts redacted. It is the same object if nothing had to change."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, list | tuple):
            items = [self.value(inner) for inner in value]
            return value if all(map(operator.is_, items, value)) else type(value)(items)
        # `dict` first: that test is much faster than the one of `Mapping`, and every message is one.
        if isinstance(value, dict | Mapping):
            new = {self._name(name): self.value(inner) for name, inner in value.items()}
            same = len(new) == len(value) and all(map(operator.is_, new, value))
            return value if same and all(map(operator.is_, new.values(), value.values())) else new
        return value

    def _name(self, name: Any) -> Any:
        """A tool may answer with an object whose names are texts of its own."""
        return self(name) if isinstance(name, str) and len(name) >= SHORTEST_SECRET else name


def without_secrets(rollout: Rollout, redact: Redactor) -> Rollout:
    """A rollout as it may be judged, stored and shown. Its token ids stay: they are what the model saw and said."""
    episode = rollout.episode and _episode(rollout.episode, redact)
    if episode is not rollout.episode:
        rollout = replace(rollout, episode=episode)
    return with_clean_reward(rollout, redact)


def with_clean_reward(rollout: Rollout, redact: Redactor) -> Rollout:
    """The rollout with its reward redacted. That is enough after judging: a judger adds nothing else."""
    reward = _reward(rollout.reward, redact)
    return rollout if reward is rollout.reward else replace(rollout, reward=reward)


def _episode(episode: Episode, redact: Redactor) -> Episode:
    messages, tools = redact.value(episode.messages), redact.value(episode.tools)
    output = episode.output and _output(episode.output, redact)
    if messages is episode.messages and tools is episode.tools and output is episode.output:
        return episode
    return replace(episode, messages=messages, tools=tools, output=output)


def _output(output: ProgramOutput, redact: Redactor) -> ProgramOutput:
    text, verifier = redact(output.text), redact(output.verifier)
    if text is output.text and verifier is output.verifier:
        return output
    return replace(output, text=text, verifier=verifier)


def _reward(reward: Reward, redact: Redactor) -> Reward:
    match reward:
        case Failed(cause, error, detail):
            shown = Failed(cause, redact(error), redact(detail))
            return reward if shown == reward else shown
        case Scored(answer=answer, evidence=evidence) if answer is not None or evidence is not None:
            shown_answer = answer and redact(answer)
            # Redacted before it is cut: of a secret that was cut, a few characters would remain.
            shown_evidence = evidence and _cut(redact(evidence))
            if shown_answer is not answer or shown_evidence is not evidence:
                return replace(reward, answer=shown_answer, evidence=shown_evidence)
    return reward


def _cut(text: str) -> str:
    """At most MOST_EVIDENCE bytes of the text."""
    if len(text) * 4 <= MOST_EVIDENCE:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= MOST_EVIDENCE:
        return text
    return data[: MOST_EVIDENCE - len(CUT_HERE[1].encode())].decode("utf-8", "ignore") + CUT_HERE[1]


def _forms(secret: str) -> Iterator[str]:
    """The secret in the forms in which programs write it."""
    for form in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
        yield form
        # Python escapes an apostrophe only if there is also a quotation mark, which may be elsewhere in the text.
        for text, start in ((form, 1), (f'"{form}', 2)):
            yield repr(text)[start:-1]
            yield repr(text.encode())[start + 1 : -1]
    yield quote(secret, safe="")
    yield quote_plus(secret)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from (form for form in _in_base64(secret.encode(), encode) if len(form) >= SHORTEST_SECRET)


def _in_base64(secret: bytes, encode: Any) -> Iterator[str]:
    """The part of its base64 form that does not depend on the text around it, such as a user's name."""
    for before in range(3):
        encoded = encode(b"\0" * before + secret).decode()
        first = -(-before * 8 // 6)
        last = (before + len(secret)) * 8 // 6
        yield encoded[first:last]


def _without_beginnings(text: str, form: str) -> str:
    """The text without the beginnings of the secret that remain where the text was cut."""
    head, parts, start = form[:SHORTEST_SECRET], list[str](), 0
    place = text.find(head)
    while place >= 0:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(form, text[place : place + len(form)], strict=False))
        end = place + sum(1 for _ in same)
        if end == len(text) or text.startswith(CUT_HERE, end):
            parts += [text[start:place], MARK]
            start = end
        place = text.find(head, max(start, place + 1))
    return "".join([*parts, text[start:]]) if parts else text
