"""Tasks from the user's function: called once, and blamed by name when it goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.config import PythonData
from loopwright.data import PythonSource, open_source
from loopwright.errors import DataError
from loopwright.types import Task

EXAMPLES = Path(__file__).parents[2] / "examples"
CODE = """
from loopwright import Task

def listed(size=2):
    return [Task.ask(str(n), f"{n}?") for n in range(size)]

def yielded():
    yield {"prompt": "a", "truth": 1}
    yield Task.ask("x", "b")

def fails(size=2):
    yield {"prompt": "a"}
    raise RuntimeError("out of problems")

def nothing(): return []
def number(): return 3
def text(): return "abc"
def one(): return {"prompt": "a"}
def wrong(): return [{"prompt": "a"}, {"question": "b"}]
async def later(): return []
CONSTANT = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path


def test_a_list_of_tasks_made_with_args(folder):
    source = open_source(PythonData(path="mine.py:listed", args={"size": 5}), folder)
    assert len(source) == 5
    assert source[4] == Task.ask("4", "4?")


def test_a_generator_of_records_and_tasks(folder):
    source = PythonSource.open("mine.py:yielded", {}, folder)
    assert [source[index].id for index in range(len(source))] == ["yielded:0", "x"]
    assert source[0].truth == 1


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("fails", {}, "mine.py:fails raised at mine.py:13: RuntimeError: out of problems"),
        ("listed", {"sise": 3}, "unexpected keyword argument 'sise'"),
        ("nothing", {}, "mine.py:nothing returned no tasks"),
        ("number", {}, "it returned int"),
        ("text", {}, "it returned str"),
        ("one", {}, "it returned dict"),
        ("wrong", {}, "mine.py:wrong, task 1: there is neither messages nor prompt"),
        ("CONSTANT", {}, "mine.py:CONSTANT is not a plain function"),
        ("later", {}, "mine.py:later is not a plain function"),
    ],
)
def test_what_goes_wrong_names_the_function(folder, name, args, words):
    with pytest.raises(DataError) as caught:
        PythonSource.open(f"mine.py:{name}", args, folder)
    assert words in caught.value.message
    assert caught.value.facts["function"] == f"mine.py:{name}"


def test_the_example_never_trains_on_what_it_is_tested_on():
    train = PythonSource.open("arithmetic.py:train_tasks", {}, EXAMPLES)
    held_out = PythonSource.open("arithmetic.py:heldout_tasks", {}, EXAMPLES)

    def pairs(source):
        return {frozenset(task.id.split("+")) for task in source.tasks}

    assert len(held_out) == 200
    assert not pairs(train) & pairs(held_out)
