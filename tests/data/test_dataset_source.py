"""Hugging Face datasets folders, both kinds: written by save_to_disk, and snapshots of repositories. No network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loopwright.config import Columns, DatasetData
from loopwright.data import open_source
from loopwright.data.dataset import DatasetSource
from loopwright.errors import DataError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def table(*numbers: int) -> datasets.Dataset:
    return datasets.Dataset.from_list([{"question": f"say {n}", "answer": n, "level": "easy"} for n in numbers])


COLUMNS = Columns(prompt="question")


def truths(folder: Path, **where: Any) -> list[int]:
    source = open_source(DatasetData(path=folder.name, columns=COLUMNS, **where), folder.parent)
    return [source[index].truth for index in range(len(source))]


def test_splits_saved_to_disk(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": table(0, 1, 2), "test": table(7)}).save_to_disk(str(tmp_path / "saved"))
    assert truths(tmp_path / "saved") == [0, 1, 2]
    assert truths(tmp_path / "saved", split="test") == [7]
    with pytest.raises(DataError, match="there is no split 'tset'") as caught:
        truths(tmp_path / "saved", split="tset")
    assert caught.value.remedy == "did you mean 'test'?"


def test_one_table_saved_to_disk(tmp_path: Path) -> None:
    table(0, 1).save_to_disk(str(tmp_path / "one"))
    source = open_source(DatasetData(path="one", columns=COLUMNS), tmp_path)
    assert [source[0].id, source[1].truth, source[1].metadata] == ["train:0", 1, {"level": "easy"}]
    with pytest.raises(IndexError):
        source[2]


def test_what_python_cannot_hold_is_named_with_its_row(tmp_path: Path) -> None:
    questions = pa.array([b"fine", b"\xff"]).view(pa.string())
    datasets.Dataset(pa.table({"question": questions})).save_to_disk(str(tmp_path / "one"))
    source = open_source(DatasetData(path="one", columns=COLUMNS), tmp_path)
    with pytest.raises(DataError, match="row 1 of split 'train': cannot be read: 'utf-8' codec"):
        source[1]


def test_a_snapshot_with_subsets_and_splits(tmp_path: Path) -> None:
    snapshot = tmp_path / "gsm"
    for subset, split, numbers in (("main", "train", (1, 2)), ("main", "test", (3,)), ("socratic", "train", (4,))):
        (snapshot / subset).mkdir(parents=True, exist_ok=True)
        rows = [{"question": f"say {n}", "answer": n} for n in numbers]
        pq.write_table(pa.Table.from_pylist(rows), snapshot / subset / f"{split}-00000-of-00001.parquet")
    configs = [
        {
            "config_name": subset,
            "data_files": [{"split": split, "path": f"{subset}/{split}-*"} for split in splits],
        }
        for subset, splits in (("main", ("train", "test")), ("socratic", ("train",)))
    ]
    (snapshot / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n# A data set\n")
    assert truths(snapshot, subset="main") == [1, 2]
    assert truths(snapshot, subset="main", split="test") == [3]
    assert truths(snapshot, subset="socratic") == [4]
    with pytest.raises(DataError, match=r"cannot be read as a dataset: .*tset"):
        truths(snapshot, subset="main", split="tset")


def test_a_snapshot_of_json_lines(tmp_path: Path) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"question": "a", "answer": 1}\n{"question": "b", "answer": 2}\n')
    (folder / "test.jsonl").write_text('{"question": "c", "answer": 3}\n')
    assert truths(folder) == [1, 2]
    assert truths(folder, split="test") == [3]


def test_a_wrong_row_and_an_empty_folder(tmp_path: Path) -> None:
    datasets.Dataset.from_list([{"question": "a"}, {"question": None}]).save_to_disk(str(tmp_path / "bad"))
    source = open_source(DatasetData(path="bad", columns=COLUMNS), tmp_path)
    with pytest.raises(DataError, match=r"bad: row 1 of split 'train': prompt must be text or messages, got null"):
        source[1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="cannot be read as a dataset"):
        DatasetSource.open(tmp_path / "empty")
