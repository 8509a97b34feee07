"""Known secrets, taken out of texts before these are stored or shown (S3).

A secret is found as it is and as programs write it down: in JSON, in a URL, in base64 (so HTTP sends a password), and
cut off at its end, because messages are shortened. Keys that we make ourselves need not be known: they are found by
their form. Secrets of less than 8 characters are not looked for: they would take ordinary words out of ordinary texts.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any
from urllib.parse import quote, quote_plus

from loopwright.types import Episode, Failed, Reward, Rollout, Scored

SHORTEST_SECRET = 8
MARK = "[redacted]"
OWN_KEY_PREFIX = "lwk_"
"""Every key that we make begins so."""
OWN_KEY = re.compile(OWN_KEY_PREFIX + r"[A-Za-z0-9_-]{8,}")
CUT_HERE = ("...", "…")
"""What is written where a text was cut; its end may be such a place, too."""

SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")


def names_a_secret(variable: str) -> bool:
    """Whether an environment variable of this name is likely to hold a secret."""
    return any(word in variable.upper() for word in SECRET_WORDS) and not variable.startswith("TOKENIZERS_")


class Redactor:
    """Takes `secrets` out of texts. A text that holds none is returned as it is, at the cost of a search."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {form for secret in secrets if len(secret) >= SHORTEST_SECRET for form in _forms(secret)}
        # The longest first: one may be a part of another.
        self._forms = sorted(known, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        if OWN_KEY_PREFIX in text:
            text = OWN_KEY.sub(MARK, text)
        for form in self._forms:
            if form[:SHORTEST_SECRET] in text:
                text = _without_beginnings(text.replace(form, MARK), form)
        return text

    def value(self, value: Any) -> Any:
        """A value of JSON with all its texts redacted; the same object if there was nothing to do."""
        match value:
            case str():
                return self(value)
            case Mapping():
                new = {name: self.value(inner) for name, inner in value.items()}
                return value if all(new[name] is inner for name, inner in value.items()) else new
            case list() | tuple():
                items = [self.value(inner) for inner in value]
                return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
        return value


def without_secrets(rollout: Rollout, redact: Redactor) -> Rollout:
    """A rollout as it may be judged, stored and shown. Its token ids stay: they are what the model saw and said."""
    episode = rollout.episode and _episode(rollout.episode, redact)
    reward = _reward(rollout.reward, redact)
    if episode is rollout.episode and reward is rollout.reward:
        return rollout
    return replace(rollout, episode=episode, reward=reward)


def _episode(episode: Episode, redact: Redactor) -> Episode:
    messages, tools = redact.value(episode.messages), redact.value(episode.tools)
    if messages is episode.messages and tools is episode.tools:
        return episode
    return replace(episode, messages=messages, tools=tools)


def _reward(reward: Reward, redact: Redactor) -> Reward:
    match reward:
        case Failed(cause, error, detail):
            shown = Failed(cause, redact(error), redact(detail))
            return reward if shown == reward else shown
        case Scored(answer=str() as answer) if (shown_answer := redact(answer)) is not answer:
            return replace(reward, answer=shown_answer)
    return reward


def _forms(secret: str) -> Iterator[str]:
    """The secret in the spellings in which programs repeat it."""
    yield secret
    yield repr(secret)[1:-1]
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield quote(secret, safe="")
    yield quote_plus(secret)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from (form for form in _in_base64(secret.encode(), encode) if len(form) >= SHORTEST_SECRET)


def _in_base64(secret: bytes, encode: Any) -> Iterator[str]:
    """What of its encoding does not depend on what stands before and after it, such as a user's name."""
    for before in range(3):
        encoded = encode(b"\0" * before + secret).decode()
        first = -(-before * 8 // 6)
        last = (before + len(secret)) * 8 // 6
        yield encoded[first:last]


def _without_beginnings(text: str, form: str) -> str:
    """Without the beginnings of a secret that are all that is left of it where the text was cut."""
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
