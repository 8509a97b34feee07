"""Parquet: any row, read when it is asked for; what is wrong is named with its file and row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.config import Columns, ParquetData, RunConfig
from loopwright.config.files import file_problems
from loopwright.data import open_source
from loopwright.data import parquet as parquet_module
from loopwright.data.mapping import RowMap
from loopwright.data.parquet import ParquetSource
from loopwright.errors import DataError


def write(file: Path, rows: list[dict[str, Any]], row_group_size: int = 2) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=row_group_size)
    return file


def asks(*numbers: int) -> list[dict[str, Any]]:
    return [{"prompt": f"say {number}", "truth": number} for number in numbers]


def truths(source: ParquetSource) -> list[int]:
    return [source[index].truth for index in range(len(source))]


def test_a_file_a_folder_and_a_pattern(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", asks(3, 4, 5))
    write(tmp_path / "a.parquet", asks(0, 1, 2))
    write(tmp_path / "deep" / "c.parquet", asks(6))
    (tmp_path / "notes.txt").write_text("not a table")
    assert truths(ParquetSource.open("b.parquet", tmp_path)) == [3, 4, 5]
    assert truths(ParquetSource.open(".", tmp_path)) == [0, 1, 2, 3, 4, 5, 6]
    assert truths(ParquetSource.open("[ab].parquet", tmp_path)) == [0, 1, 2, 3, 4, 5]
    assert truths(ParquetSource.open("**/c*", tmp_path)) == [6]
    assert ParquetSource.open(".", tmp_path)[4].id == "b:1", "the row in its own file"


def test_brackets_in_the_name_of_a_folder_or_a_file_are_no_pattern(tmp_path: Path) -> None:
    base = tmp_path / "run [1]"
    write(base / "train-[x].parquet", asks(0))
    write(base / "train-1.parquet", asks(1))
    for path, expected in (
        ("train-[x].parquet", [0]),
        ("train-[0-9].parquet", [1]),
        ("train-*", [1, 0]),
        (".", [1, 0]),
    ):
        assert truths(ParquetSource.open(path, base)) == expected
        config = RunConfig.model_validate(
            {
                "model": {"path": "smollm2"},
                "task_sets": [
                    {
                        "name": "train",
                        "data": {"kind": "parquet", "path": path},
                        "agent": {"kind": "single_turn", "judger": "integer_answer"},
                    }
                ],
                "trainer": {"run_dir": str(tmp_path), "steps": 1},
            }
        )
        assert list(file_problems(config, base)) == []


def test_verls_files_with_a_documented_mapping(tmp_path: Path) -> None:
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "2+2?"}],
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 3},
    }
    write(tmp_path / "train.parquet", [row])
    data = ParquetData(path="train.parquet", columns=Columns(truth="reward_model.ground_truth", id="extra_info.index"))
    task = open_source(data, tmp_path)[0]
    assert (task.id, task.truth, task.messages) == ("3", "4", ({"role": "user", "content": "2+2?"},))
    assert task.metadata["data_source"] == "openai/gsm8k"


def test_only_row_groups_that_are_asked_for_are_read_and_few_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "big.parquet", asks(*range(1000)), row_group_size=10)
    read: list[int] = []
    original = pq.ParquetFile.read_row_group

    def counting(self: pq.ParquetFile, number: int) -> pa.Table:
        read.append(number)
        return original(self, number)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counting)
    source = ParquetSource.open("big.parquet", tmp_path)
    assert [source[index].truth for index in (5, 994, 991, 3)] == [5, 994, 991, 3]
    assert read == [0, 99]
    monkeypatch.setattr(parquet_module, "CACHED_BYTES", 1)
    assert [source[index].truth for index in (500, 501)] == [500, 501]
    assert read == [0, 99, 50]
    assert len(source.cache) == 1


def test_a_wrong_row_is_named_with_its_file_when_it_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", asks(0, 1, 2))
    rows: list[dict[str, Any]] = [{"prompt": said, "truth": n} for n, said in enumerate(("fine", "fine", None), 1)]
    bad = write(tmp_path / "b.parquet", rows)
    source = ParquetSource.open(".", tmp_path)
    with pytest.raises(DataError) as caught:
        source[5]
    assert caught.value.message == f"{bad}: row 2: there is neither messages nor prompt"
    assert (caught.value.facts["file"], caught.value.facts["row"]) == (str(bad), 2)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([b"fine", b"\xff"]).view(pa.string()), "'utf-8' codec can't decode byte 0xff"),
        (pa.array([0, 2**62], pa.timestamp("us")), "date value out of range"),
    ],
)
def test_what_python_cannot_hold_is_named_with_its_row(tmp_path: Path, column: pa.Array, words: str) -> None:
    pq.write_table(pa.table({"prompt": ["a", "b"], "extra": column}), tmp_path / "t.parquet")
    source = ParquetSource.open("t.parquet", tmp_path, RowMap(function=lambda row: {"prompt": row["prompt"]}))
    with pytest.raises(DataError) as caught:
        source[1]
    assert caught.value.message.startswith(f"{tmp_path / 't.parquet'}: row 1: cannot be read: {words}")
    assert caught.value.facts["row"] == 1


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(DataError, match=r"text\.parquet: cannot be read as Parquet"):
        ParquetSource.open("text.parquet", tmp_path)
    with pytest.raises(DataError, match="there are no tasks in it"):
        ParquetSource.open("none-*.parquet", tmp_path)
    write(tmp_path / "wrong" / "w.parquet", [{"question": "?"}])
    with pytest.raises(DataError, match="row 0: there is neither messages nor prompt"):
        ParquetSource.open("wrong", tmp_path)
    with pytest.raises(IndexError):
        ParquetSource.open(str(write(tmp_path / "one" / "x.parquet", asks(1))), tmp_path)[1]


@settings(max_examples=25)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(1, 4))
def test_every_row_has_one_place(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], group: int) -> None:
    folder, first = tmp_path_factory.mktemp("parquet"), 0
    for number, size in enumerate(sizes):
        write(folder / f"{number}.parquet", asks(*range(first, first + size)), row_group_size=group)
        first += size
    assert truths(ParquetSource.open(".", folder)) == list(range(sum(sizes)))
