"""Only the template writes control tokens. Text that spells a control token stays text (T9).

Before a template sees a text, each control token that the text spells is replaced by a placeholder. Nobody can guess
the placeholder, and no template has a reason to change it. So a control token in the written conversation was written
by the template itself. `Vocabulary` encodes placeholders with ordinary tokens, as the text that they stand for.

Two texts, or a text and the template's words, may also spell a control token together. So an empty placeholder (a seam)
is put where a text begins or ends like a part of a control token.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from loopwright.render.hermes import CALL, CALL_END, THINK, THINK_END

KNOWN = frozenset({CALL, CALL_END, THINK, THINK_END, "<tools>", "</tools>", "<tool_response>", "</tool_response>"})
MARK = re.compile(r"<[|｜].*[|｜]>|\[/?[A-Z_]+\]", re.DOTALL)
"""The form of control tokens that a tokenizer does not mark as special."""

# Digits do not change in upper or lower case, in JSON, or when spaces around them are trimmed.
_SECRET = f"{secrets.randbelow(9 * 10**29) + 10**29}"
_PLACEHOLDER = re.compile(_SECRET + r"(\d{8})")
_SEAM = 10**8 - 1

CUT = -1
"""A number that no token has."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """A control token that is spelled from `begin` to `end`. `is_text`: the template did not write it. `token` is `CUT`
    if only its beginning is text, because the rest belongs to a token that the template wrote."""

    begin: int
    end: int
    token: int
    is_text: bool


class ControlTokens:
    """The control tokens of a tokenizer. An added token is one if it is special, if the `template` writes it, if a
    model family needs it (`marks`), or if it has the form of one. `normalize` is the tokenizer's first step on a text,
    if this step can make a text spell an added token."""

    def __init__(
        self,
        added: Mapping[int, Any],
        template: str = "",
        marks: Collection[str] = (),
        normalize: Callable[[str], str] | None = None,
    ) -> None:
        self._written = {number: str(token) for number, token in added.items() if _is_control(token, template, marks)}
        self._flags = {number: (bool(added[number].lstrip), bool(added[number].rstrip)) for number in self._written}
        self._numbers = {spelled: number for number, spelled in self._written.items()}
        self._normalize = normalize if any(added[number].normalized for number in self._written) else None
        if self._normalize is not None:
            self._numbers |= {self._normalize(spelled): number for spelled, number in self._numbers.items()}
        texts = sorted(self._numbers, key=len, reverse=True)
        self._pattern = re.compile(_one_of(texts) if texts else "(?!)")
        self._firsts = tuple({text[0] for text in texts})
        self._lasts = tuple({text[-1] for text in texts})
        self._signs = tuple({*self._firsts, *self._lasts})
        """A text without any of these characters spells no control token, and does not begin or end like one."""
        self._beginnings = tuple({text[:size] for text in texts for size in range(1, len(text))})
        self._endings = tuple({text[size:] for text in texts for size in range(1, len(text))})
        self._longest = max(map(len, texts), default=0)

    def __contains__(self, token: object) -> bool:
        return token in self._written

    def knows(self, spelled: str) -> bool:
        return spelled in self._numbers

    def hide(self, text: str) -> str:
        """The text with placeholders for the control tokens that it spells. Most texts spell none, and are returned
        unchanged."""
        if self._normalize is not None and self._pattern.search(normal := self._normalize(text)):
            text = normal
        for sign in self._signs:
            if sign in text:
                if self._pattern.search(text):
                    text = self._pattern.sub(lambda found: _placeholder(self._numbers[found[0]]), text)
                return self._with_seams(text)
        return text

    def hide_in(self, value: Any) -> Any:
        """A JSON value in which all texts went through `hide`."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide_in(key): self.hide_in(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(self.hide_in, value))
        return value

    def hide_in_tools(self, tools: Sequence[Any]) -> Sequence[Any]:
        """The same for tools. They hold many texts and almost never a control token, so all texts are checked at once
        first."""
        if not tools:
            return tools
        try:
            spelled = orjson.dumps(list(tools)).decode()
        except orjson.JSONEncodeError:
            return [self.hide_in(tool) for tool in tools]
        if not any(sign in spelled for sign in self._signs):
            return tools
        return [self.hide_in(tool) for tool in tools]

    def shown(self, text: str) -> str:
        """The text with each placeholder replaced by the text that it stands for."""
        if _SECRET not in text:
            return text
        return _PLACEHOLDER.sub(lambda found: self._text_of(found[1]), text)

    def spelled(self, text: str) -> tuple[str, list[Spelled]]:
        """A written conversation without placeholders, and the places where it spells control tokens."""
        parts: list[str] = []
        hidden: list[tuple[int, int]] = []
        length = place = 0
        for found in _PLACEHOLDER.finditer(text):
            words, instead = text[place : found.start()], self._text_of(found[1])
            hidden.append((length + len(words), length + len(words) + len(instead)))
            parts += [words, instead]
            length, place = hidden[-1][1], found.end()
        whole = "".join([*parts, text[place:]])
        return whole, list(self._found(whole, hidden))

    def _found(self, whole: str, hidden: Sequence[tuple[int, int]]) -> Iterator[Spelled]:
        places, last = iter(hidden), 0
        next_one = next(places, None)
        while found := self._pattern.search(whole, last):
            begin, end = found.span()
            while next_one is not None and next_one[1] <= begin:
                next_one = next(places, None)
            is_text = next_one is not None and next_one[0] < end
            number = self._numbers[found[0]]
            if next_one is not None and is_text:
                if next_one[1] < end and self._begins_within(whole, next_one[1], end):
                    # A token that text and template spell together must not use a part of a token of the template.
                    end, number = next_one[1], CUT
                else:
                    begin, end = self._with_space(whole, begin, end, last, number)
            last = end
            yield Spelled(begin, end, number, is_text)

    def _begins_within(self, whole: str, begin: int, end: int) -> bool:
        """Whether a control token begins between `begin` and `end`."""
        found = self._pattern.search(whole, begin, end + self._longest)
        return found is not None and found.start() < end

    def _with_space(self, whole: str, begin: int, end: int, last: int, number: int) -> tuple[int, int]:
        """The begin and end of a token together with the white space that the tokenizer would remove around it. The
        text must keep that white space."""
        takes_left, takes_right = self._flags[number]
        while takes_left and begin > last and whole[begin - 1].isspace():
            begin -= 1
        while takes_right and whole[end : end + 1].isspace():
            end += 1
        return begin, end

    def _text_of(self, number: str) -> str:
        return "" if int(number) == _SEAM else self._written[int(number)]

    def _with_seams(self, text: str) -> str:
        reach = self._longest - 1
        end = text.rstrip() if text[-1:].isspace() else text
        tail = end[-reach:]
        for first in self._firsts:
            if first in tail and end.endswith(self._beginnings):
                text = f"{end}{_placeholder(_SEAM)}{text[len(end) :]}"
                break
        begin = text.lstrip() if text[:1].isspace() else text
        head = begin[:reach]
        for last in self._lasts:
            if last in head and begin.startswith(self._endings):
                return f"{text[: len(text) - len(begin)]}{_placeholder(_SEAM)}{begin}"
        return text


def hides_spelling(text: str) -> bool:
    """Whether a text contains placeholders."""
    return _SECRET in text


def _placeholder(number: int) -> str:
    return f"{_SECRET}{number:08d}"


def _one_of(texts: Collection[str]) -> str:
    """A pattern that finds the longest of these texts letter by letter. Trying one text after the other at each place
    would take time in proportion to the number of texts."""
    rests: dict[str, set[str]] = {}
    for text in texts:
        if text:
            rests.setdefault(text[0], set()).add(text[1:])
    branches = [re.escape(first) + _one_of(rest) for first, rest in rests.items()]
    pattern = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""
    return f"(?:{pattern})?" if branches and "" in texts else pattern


def _is_control(token: Any, template: str, marks: Collection[str]) -> bool:
    text = str(token)
    if not text.strip():
        return False
    if token.special or text in marks or text in KNOWN or MARK.fullmatch(text):
        return True
    # Some tokenizers have letters, tags and several line ends among their added tokens.
    return len(text) > 2 and not text.isalnum() and text in template
