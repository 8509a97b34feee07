"""Finds out how a family of models writes answers, thoughts and calls, from what its renderer writes.

A call's syntax is known if its arguments are written as JSON. Others, such as arguments in XML, have no grammar here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from loopwright.render.call_json import BLANK
from loopwright.render.grammar import CallSyntax, Pieces
from loopwright.render.hermes import THINK_END
from loopwright.render.probes import ANSWERED, ASKED, CALLED, THOUGHT, TOOL
from loopwright.types import Message, Tool

Written = Callable[[Sequence[Message], Sequence[Tool]], Pieces | None]
"""The answer that is the last message, without the end of the turn, as pieces. None if nobody knows."""

NAME = str(TOOL["name"])
CALL_ID = str(CALLED["tool_calls"][0]["id"])
ARGUMENTS = re.compile(r'\{\s*"text"\s*:\s*"loopwright-argument"\s*\}')
TWICE: Message = {**CALLED, "tool_calls": CALLED["tool_calls"] * 2}


def found_calls(written: Written, think_end: str | int) -> CallSyntax | None:
    """How calls are written. None if that is not known."""
    one = written([ASKED, CALLED], [TOOL])
    if one is None:
        return None
    parts = _around_call(after_thought(one, think_end))
    if parts is None or any(CALL_ID in piece for part in parts for piece in part if isinstance(piece, str)):
        return None
    before, between, after = parts
    twice = written([ASKED, TWICE], [TOOL])
    joint = None if twice is None else _joint(after_thought(twice, think_end), after_thought(one, think_end))
    return CallSyntax(before, between, after, joint)


def found_frame(written: Written, think_end: str | int) -> tuple[Pieces, Pieces] | None:
    """What is before and after the words of an answer. None if that is not known."""
    said = written([ASKED, ANSWERED], [])
    return None if said is None else split_at(after_thought(said, think_end), re.compile(str(ANSWERED["content"])))


def writes_thoughts(written: Written, think_end: str | int) -> bool:
    """Whether thoughts are between `<think>` and `</think>`, before the answer."""
    said = written([ASKED, THOUGHT], []) or ()
    return think_end in said or any(isinstance(piece, str) and THINK_END in piece for piece in said)


def after_thought(said: Pieces, think_end: str | int) -> Pieces:
    """The pieces after a thought, which may be an empty one."""
    if think_end in said:
        return _without_blank(said[said.index(think_end) + 1 :])
    for place, piece in enumerate(said):
        if isinstance(piece, str) and THINK_END in piece:
            return _without_blank((piece.partition(THINK_END)[2], *said[place + 1 :]))
    return said


def split_at(said: Pieces, wanted: re.Pattern[str]) -> tuple[Pieces, Pieces] | None:
    """The pieces before and after the only place of some text. None if it is not there just once."""
    places = [(n, m) for n, piece in enumerate(said) if isinstance(piece, str) for m in wanted.finditer(piece)]
    if len(places) != 1:
        return None
    number, match = places[0]
    before, after = match.string[: match.start()], match.string[match.end() :]
    return (*said[:number], before), (after, *said[number + 1 :])


def _around_call(said: Pieces) -> tuple[Pieces, Pieces, Pieces] | None:
    named = split_at(said, re.compile(NAME))
    told = None if named is None else split_at(named[1], ARGUMENTS)
    return None if named is None or told is None else (named[0], *told)


def _joint(twice: Pieces, one: Pieces) -> Pieces | None:
    """What is between two calls. None if two calls are written otherwise than one after the other."""
    both, single = _signs(twice), _signs(one)
    end = len(both) - len(single)
    if end < len(single) or both[: len(single)] != single or both[end:] != single:
        return None
    return tuple(both[len(single) : end])


def _signs(said: Pieces) -> list[str | int]:
    """Marks and single characters."""
    return [sign for piece in said for sign in ([piece] if isinstance(piece, int) else piece)]


def _without_blank(said: Pieces) -> Pieces:
    if said and isinstance(said[0], str):
        return (said[0].lstrip(BLANK), *said[1:])
    return said
