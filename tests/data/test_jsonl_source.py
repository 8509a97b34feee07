"""JSONL: every line is a task, or an error that names file and line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.config import JsonlData
from loopwright.data import JsonlSource, open_source
from loopwright.errors import DataError
from loopwright.types import Task


def source_of(folder: Path, *lines: str) -> JsonlSource:
    file = folder / "train.jsonl"
    file.write_text("\n".join(lines))
    return JsonlSource.open(file)


def test_both_shapes_of_a_task(tmp_path):
    source = source_of(
        tmp_path,
        '{"id": 7, "prompt": "2+2?", "truth": 4}',
        "",
        '{"instruction": "Say hi", "ground_truth": "hi", "level": 3, "metadata": {"from": "here"}}',
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "answer": [1], '
        '"tools": [{"type": "function"}]}',
        "",
    )

    assert len(source) == 3
    assert source[0] == Task("7", ({"role": "user", "content": "2+2?"},), 4)
    assert source[1].id == "train:3"
    assert source[1].metadata == {"level": 3, "from": "here"}
    assert source[1].truth == "hi"
    assert source[2].id == "train:4"
    assert [message["role"] for message in source[2].messages] == ["system", "user"]
    assert source[2].truth == [1]
    assert source[2].tools == ({"type": "function"},)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "a"', "not valid JSON"),
        ("[1]", "a task must be an object, got a list"),
        ("{}", "neither messages nor prompt"),
        ('{"prompt": 3}', "prompt must be text or messages, got a number"),
        ('{"prompt": ""}', "prompt must be text or messages, got empty text"),
        ('{"prompt": "a", "messages": []}', "messages and prompt mean the same thing"),
        ('{"prompt": "a", "truth": 1, "answer": 1}', "truth and answer mean the same thing"),
        ('{"prompt": "a", "id": true}', "id must be text or a whole number"),
        ('{"prompt": "a", "id": null}', "id must be text or a whole number, got null"),
        ('{"messages": []}', "messages is empty"),
        ('{"messages": "hello"}', "messages must be a list of objects, got text"),
        ('{"messages": ["hello"]}', "messages must be a list of objects"),
        ('{"messages": [{"content": "a"}]}', "a message has no role"),
        ('{"messages": [{"role": "user"}]}', "a message has no content"),
        ('{"messages": [{"role": 3, "content": "a"}]}', "a message has no role"),
        ('{"messages": [{"role": "user", "content": [1, 2]}]}', "content must be a list of objects, got a list with a"),
        ('{"messages": [{"role": "user", "content": {"text": "a"}}]}', "a message has no content"),
        ('{"messages": [{"role": "user", "content": 1, "tool_calls": [{}]}]}', "content must be a list of objects"),
        ('{"messages": [{"role": "user", "content": "a", "tool_calls": 5}]}', "tool_calls must be a list of objects"),
        ('{"messages": [{"role": "user", "tool_calls": ["f"]}]}', "tool_calls must be a list of objects"),
        (r'{"prompt": "a\ud800"}', r"messages has '\ud800' in it, which is half of a character"),
        (r'{"id": "\udc00", "prompt": "a"}', r"id has '\udc00' in it, which is half of a character"),
        (r'{"prompt": "a", "tools": [{"name": "\ud800"}]}', r"tools has '\ud800' in it"),
        ('{"prompt": "a", "truth": NaN}', "this line is not valid JSON: NaN is no JSON value"),
        ('{"prompt": "a", "tools": {}}', "tools must be a list of objects"),
        ('{"prompt": "a", "metadata": 3}', "metadata must be an object"),
        ('{"prompt": "a", "k": 1, "metadata": {"k": 2}}', "'k' is given twice"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, words):
    with pytest.raises(DataError) as caught:
        source_of(tmp_path, '{"prompt": "fine"}', "", line)
    assert caught.value.message.startswith(f"{tmp_path / 'train.jsonl'}:3: ")
    assert words in caught.value.message
    assert caught.value.facts["line"] == 3
    assert caught.value.facts["file"].endswith("train.jsonl")
    assert caught.value.remedy


def test_a_line_that_is_nested_without_end_is_named(tmp_path):
    with pytest.raises(DataError, match=r"train\.jsonl:1: this line is not valid JSON"):
        source_of(tmp_path, '{"prompt": "a", "k": ' + "[" * 100_000)


def test_a_tool_call_needs_no_content(tmp_path):
    line = '{"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}]}'
    assert len(source_of(tmp_path, line)) == 1


def test_templates_have_roles_and_contents_of_their_own(tmp_path):
    line = r'{"messages": [{"role": "critic", "content": [{"text": "\ud83d\ude00"}], "tool_calls": null}]}'
    assert source_of(tmp_path, line)[0].messages[0]["content"] == [{"text": "\U0001f600"}]


@pytest.mark.parametrize("text", ["", "\n\n  \n"])
def test_an_empty_file_is_an_error(tmp_path, text):
    with pytest.raises(DataError, match="there are no tasks"):
        source_of(tmp_path, text)


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        JsonlSource.open(tmp_path / "none.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(DataError, match=r"b\.jsonl:1: this line is not valid JSON"):
        JsonlSource.open(tmp_path / "b.jsonl")


@pytest.mark.parametrize("text", ['{"prompt": "c"}\n{"prompt": "d"}\n', '{"prompt": "a"}\n{"pro'])
def test_a_file_that_changes_or_goes_while_it_is_in_use(tmp_path, text):
    source = source_of(tmp_path, '{"prompt": "a"}', '{"prompt": "b"}', "")
    source.path.write_text(text)
    os.utime(source.path, ns=(0, source.edition.modified_ns + 1))
    with pytest.raises(DataError, match=r"train\.jsonl: was changed while its tasks are in use"):
        source[1]
    source.path.unlink()
    with pytest.raises(DataError, match=r"train\.jsonl: cannot be read: No such file"):
        source[1]


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path):
    file = tmp_path / "w.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}\r\n')
    source = JsonlSource.open(file)
    assert [source[index].messages[0]["content"] for index in (0, 1)] == ["a", "b"]


def test_an_index_past_the_end_is_an_index_error(tmp_path):
    with pytest.raises(IndexError):
        source_of(tmp_path, '{"prompt": "a"}')[1]


def test_open_source_starts_from_the_base(tmp_path):
    source_of(tmp_path, '{"prompt": "a"}')
    assert len(open_source(JsonlData(path="train.jsonl"), tmp_path)) == 1


records = st.lists(
    st.fixed_dictionaries(
        {"prompt": st.text(min_size=1)}, optional={"truth": st.integers() | st.text(), "note": st.text()}
    ),
    min_size=1,
    max_size=8,
)


@given(records, st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_every_record_comes_back_whatever_stands_between_the_lines(tmp_path_factory, items, blanks):
    file = tmp_path_factory.mktemp("jsonl") / "any.jsonl"
    lines = ["\n" * blank + json.dumps(item, ensure_ascii=False) for item, blank in zip(items, blanks, strict=False)]
    file.write_text("\n".join(lines), encoding="utf-8")

    source = JsonlSource.open(file)

    assert [source[index].messages[0]["content"] for index in range(len(source))] == [item["prompt"] for item in items]
    assert [source[index].truth for index in range(len(source))] == [item.get("truth") for item in items]
