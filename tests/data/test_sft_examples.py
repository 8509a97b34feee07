"""Examples to imitate: conversations that end with an answer, or an error with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopwright.data.examples import read_examples
from loopwright.errors import DataError

ASKED = {"role": "user", "content": "2+2?"}
ANSWERED = {"role": "assistant", "content": "4"}


def written(folder: Path, *records: object) -> Path:
    file = folder / "examples.jsonl"
    file.write_text("\n".join(record if isinstance(record, str) else json.dumps(record) for record in records))
    return file


def test_conversations_keep_their_messages_and_place(tmp_path: Path) -> None:
    file = written(tmp_path, {"messages": [ASKED, ANSWERED]}, "", {"messages": [ASKED, ANSWERED, ASKED, ANSWERED]})
    first, second = read_examples(file)
    assert first.messages == (ASKED, ANSWERED)
    assert len(second.messages) == 4
    assert second.where == f"{file}:3"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ("{", "not valid JSON"),
        ({"messages": []}, "messages is empty"),
        ({"prompt": "2+2?"}, "no answer to learn"),
        ({"messages": [ASKED]}, "no answer to learn"),
        ({"messages": [ANSWERED, ASKED]}, "no answer to learn"),
        ({"messages": [ASKED, {"role": "assistant", "content": ""}]}, "no answer to learn"),
        ({"messages": [ASKED, {"role": "assistant", "content": [{"type": "text"}]}]}, "no answer to learn"),
        ({"messages": [ANSWERED]}, "nothing before the answer"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, record: object, words: str) -> None:
    file = written(tmp_path, {"messages": [ASKED, ANSWERED]}, record)
    with pytest.raises(DataError, match=words) as caught:
        read_examples(file)
    assert f"{file}:2" in caught.value.message
    assert caught.value.facts["line"] == 2
