"""One mapping for rows of every kind of file: columns by name, by dotted name, or by the user's function."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.config import Columns, JsonlData
from loopwright.data.mapping import RowMap
from loopwright.errors import DataError
from loopwright.types import Task


def mapped(row: object, nulls_are_absent: bool = False, **columns: str) -> Task:
    rows = RowMap(columns, nulls_are_absent=nulls_are_absent)
    return rows.task(row, default_id="file:3", where="file: row 3", file="file", row=3)


def test_named_columns_and_the_rest_as_metadata() -> None:
    task = mapped({"question": "2+2?", "solution": 4, "uid": 9, "level": "easy"}, prompt="question", truth="solution")
    assert task == Task.ask("file:3", "2+2?", 4, uid=9, level="easy")
    assert mapped({"question": "?", "uid": 9}, prompt="question", id="uid").id == "9"


def test_verls_format() -> None:
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "2+2?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 17, "split": "train", "answer": "#### 4"},
    }
    task = mapped(row, truth="reward_model.ground_truth", id="extra_info.index")
    assert (task.id, task.truth, task.messages) == ("17", "4", ({"role": "user", "content": "2+2?"},))
    assert task.metadata == {key: row[key] for key in ("data_source", "ability", "reward_model", "extra_info")}


def test_a_usual_name_that_is_not_meant_is_metadata() -> None:
    row = {"question": "2+2?", "prompt": "old", "answer": "four", "number": 4, "metadata": {"from": "here"}}
    task = mapped(row, prompt="question", truth="number")
    assert (task.truth, task.metadata) == (4, {"prompt": "old", "answer": "four", "from": "here"})


def test_a_column_with_a_dot_in_its_name_comes_first() -> None:
    assert mapped({"prompt": "?", "a.b": 1, "a": {"b": 2}}, truth="a.b").truth == 1


def test_an_empty_cell_of_a_table_is_no_value_but_a_null_in_json_is_one() -> None:
    row = {"prompt": "?", "messages": None, "tools": None, "note": None}
    assert mapped(row, nulls_are_absent=True) == Task.ask("file:3", "?")
    with pytest.raises(DataError, match="messages and prompt mean the same thing"):
        mapped(row)
    assert mapped({"prompt": "?", "a": None}, nulls_are_absent=True, truth="a.b").truth is None


@pytest.mark.parametrize(
    ("row", "columns", "words", "remedy"),
    [
        ({"qestion": "?"}, {"prompt": "question"}, "there is no column 'question'", "did you mean 'qestion'?"),
        ({"prompt": "?", "a": {"c": 1}}, {"truth": "a.b"}, "there is no column 'a.b'", "fields in 'a': c"),
        ({"prompt": "?", "a": 3}, {"truth": "a.b"}, "there is no column 'a.b'", "there is no fields in 'a'"),
        ({"question": 3}, {"prompt": "question"}, "prompt must be text or messages, got a number", "write"),
        ({"p": "?", "prompt": 1, "metadata": 3}, {"prompt": "p"}, "metadata must be an object", "data.map"),
        ({"prompt": "?", "raw": b"x"}, {}, "raw cannot be stored as JSON", "make the task with a data.map"),
        ({"prompt": "?", "due": datetime(2026, 1, 2)}, {}, "due cannot be stored as JSON", "use strings"),
        ({"prompt": "?", "tools": 3}, {}, "tools must be a list of objects", "make the task with a data.map"),
        ({"prompt": "?", "metadata": 3}, {}, "metadata must be an object", "make the task with a data.map"),
        ({"prompt": "?", "answer": 1, "ground_truth": 1}, {}, "mean the same thing", "are meant in data.columns"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_row(row: Any, columns: dict[str, Any], words: str, remedy: str) -> None:
    with pytest.raises(DataError) as caught:
        mapped(row, **columns)
    assert caught.value.message.startswith("file: row 3: ")
    assert words in caught.value.message
    assert remedy in caught.value.remedy
    assert (caught.value.facts["file"], caught.value.facts["row"]) == ("file", 3)


FUNCTIONS = """
from loopwright import Task

def to_task(row):
    return Task.ask(f"q{row['n']}", row["question"], truth=row["answer"].rpartition("#### ")[2], size=(1, 2))

def to_record(row):
    return {"prompt": row["question"], "truth": 1}

def nothing(row):
    return None

def leave(row):
    raise SystemExit(0)

async def late(row): ...
"""


def by_function(folder: Path, name: str) -> RowMap:
    (folder / "maps.py").write_text(FUNCTIONS)
    return RowMap.of(JsonlData(path="x.jsonl", map=f"maps.py:{name}"), folder)


def test_the_users_function_makes_a_task_or_a_record(tmp_path: Path) -> None:
    row = {"n": 5, "question": "2+2?", "answer": "It is 4. #### 4"}
    task = by_function(tmp_path, "to_task").task(row, default_id="x:1", where="x:1")
    assert task == Task.ask("q5", "2+2?", "4", size=[1, 2]), "as JSON will give it back"
    assert by_function(tmp_path, "to_record").task(row, default_id="x:1", where="x:1") == Task.ask("x:1", "2+2?", 1)


def test_what_the_users_function_does_wrong(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x:1: maps\.py:to_task raised at maps\.py:5: KeyError: 'n'"):
        by_function(tmp_path, "to_task").task({}, default_id="x:1", where="x:1")
    with pytest.raises(DataError, match=r"x:1: maps\.py:leave raised at maps\.py:14: SystemExit: 0"):
        by_function(tmp_path, "leave").task({}, default_id="x:1", where="x:1")
    with pytest.raises(DataError, match="x:1: a task must be an object, got null"):
        by_function(tmp_path, "nothing").task({}, default_id="x:1", where="x:1")
    with pytest.raises(DataError, match="not a plain function"):
        by_function(tmp_path, "late")


def test_columns_of_a_config() -> None:
    data = JsonlData(path="x", columns=Columns(prompt="q"))
    assert RowMap.of(data, Path()).columns == {"prompt": "q"}
    assert RowMap.of(JsonlData(path="x"), Path()).columns == {}


names = st.sampled_from(["q", "prompt", "answer", "truth", "id", "a", "b"])
values = st.integers() | st.text(min_size=1) | st.booleans()


@given(st.dictionaries(names, values, min_size=1), st.data())
def test_no_column_is_lost_whatever_is_mapped(row: dict[str, Any], data: st.DataObject) -> None:
    """Every column of a row is in the task: as the part it was mapped to, or by its name in the metadata."""
    row = {name: str(value) if name in ("id", "prompt") else value for name, value in row.items()}
    row["q"] = "the question"
    truth = data.draw(st.sampled_from(sorted(set(row) - {"q"}))) if len(row) > 1 else "q"
    task = mapped(row, prompt="q", truth=truth, id="q")
    assert (task.messages[0]["content"], task.id, task.truth) == ("the question", "the question", row[truth])
    assert task.metadata == {name: value for name, value in row.items() if name not in ("q", truth)}
