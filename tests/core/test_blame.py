"""An exception is described by its type, message and place in the user's file."""

from __future__ import annotations

import json

from loopwright.core.blame import blame


def provoke() -> Exception:
    try:
        json.loads("{")
    except ValueError as error:
        return error
    raise RuntimeError("json accepts everything now")


def test_the_place_is_the_innermost_frame_of_the_users_file() -> None:
    words = blame(provoke(), provoke)
    assert words.startswith("JSONDecodeError: Expecting property name")
    assert words.endswith(", in provoke)")
    assert "test_blame.py:" in words


def test_without_a_file_it_is_the_innermost_frame_of_all() -> None:
    assert "decoder.py:" in blame(provoke())


def test_an_exception_without_message_or_traceback_is_just_its_name() -> None:
    assert blame(KeyError()) == "KeyError"
