"""Tasks from the user's function: called once, and blamed by name when it goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.buffer.codec import decode_task, encode_task
from loopwright.config import PythonData
from loopwright.data import PythonSource, open_source
from loopwright.errors import DataError
from loopwright.types import Task

EXAMPLES = Path(__file__).parents[2] / "examples"
CODE = """
from decimal import Decimal
from types import MappingProxyType
import numpy as np
from loopwright import Task

def listed(size=2):
    return [Task.ask(str(n), f"{n}?") for n in range(size)]

def yielded():
    yield {"prompt": "a", "truth": 1}
    yield Task.ask("x", "b")

def fails(size=2):
    yield {"prompt": "a"}
    raise RuntimeError("out of problems")

def leaves(): raise SystemExit
def nothing(): return []
def number(): return 3
def text(): return "abc"
def one(): return {"prompt": "a"}
def wrong(): return [{"prompt": "a"}, {"question": "b"}]
def numbered(): return [Task.ask("a", "a", truth={1: "one"})]
def exact(): return [Task.ask("a", "a"), {"prompt": "b", "truth": [Decimal("1.5")]}]
def infinite(): return [Task.ask("a", "a", truth=float("inf"))]
def arrayed(): return [Task.ask("a", "a", grid=np.zeros(2))]
def keyed(): return [{"prompt": "a", 7: 8}]
def shapeless(): return [Task("a", "What is 2+2?")]
def endless():
    loop = []
    loop.append(loop)
    return [{"prompt": "a", "loop": loop}]
def odd():
    yield Task(
        np.int64(5),
        [MappingProxyType({"role": "user", "content": "a"})],
        (np.int64(4), np.float32(0.5), np.bool_(True)),
        metadata=MappingProxyType({"pair": (1, "x")}),
    )
    yield {"prompt": "b", "truth": np.int64(4), "span": (1, (2, 3))}
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
        ("fails", {}, "mine.py:fails raised at mine.py:16: RuntimeError: out of problems"),
        ("listed", {"sise": 3}, "unexpected keyword argument 'sise'"),
        ("leaves", {}, "mine.py:leaves raised at mine.py:18: SystemExit"),
        ("nothing", {}, "mine.py:nothing returned no tasks"),
        ("number", {}, "it returned int"),
        ("text", {}, "it returned str"),
        ("one", {}, "it returned dict"),
        ("wrong", {}, "mine.py:wrong, task 1: there is neither messages nor prompt"),
        ("numbered", {}, "mine.py:numbered, task 0: truth cannot be stored as JSON: the key 1 is not text"),
        ("exact", {}, "mine.py:exact, task 1: truth cannot be stored as JSON: Decimal('1.5') is of type Decimal"),
        ("infinite", {}, "mine.py:infinite, task 0: truth cannot be stored as JSON"),
        ("arrayed", {}, "mine.py:arrayed, task 0: metadata cannot be stored as JSON"),
        ("keyed", {}, "mine.py:keyed, task 0: 7 cannot be stored as JSON: the key 7 is not text"),
        ("endless", {}, "mine.py:endless, task 0: loop cannot be stored as JSON"),
        ("shapeless", {}, "mine.py:shapeless, task 0: messages must be a list of objects"),
        ("CONSTANT", {}, "mine.py:CONSTANT is not a plain function"),
        ("later", {}, "mine.py:later is not a plain function"),
    ],
)
def test_what_goes_wrong_names_the_function(folder, name, args, words):
    with pytest.raises(DataError) as caught:
        PythonSource.open(f"mine.py:{name}", args, folder)
    assert words in caught.value.message
    assert caught.value.facts["function"] == f"mine.py:{name}"


def test_a_task_is_the_same_after_it_was_stored(folder):
    source = PythonSource.open("mine.py:odd", {}, folder)
    assert [source[n] for n in range(2)] == [decode_task(encode_task(source[n])) for n in range(2)]
    assert (source[0].id, source[0].truth, source[0].metadata) == ("5", [4, 0.5, True], {"pair": [1, "x"]})
    assert source[0].messages == ({"role": "user", "content": "a"},)
    assert (source[1].truth, source[1].metadata) == (4, {"span": [1, [2, 3]]})
    assert type(source[1].truth) is int


def test_the_example_never_trains_on_what_it_is_tested_on():
    train = PythonSource.open("arithmetic.py:train_tasks", {}, EXAMPLES)
    held_out = PythonSource.open("arithmetic.py:heldout_tasks", {}, EXAMPLES)

    def pairs(source):
        return {frozenset(task.id.split("+")) for task in source.tasks}

    assert len(held_out) == 200
    assert not pairs(train) & pairs(held_out)


def test_the_example_is_tested_on_what_it_was_trained_for():
    """Sums in either order. Small models learn one first, and to be asked for the other alone would tell little."""

    def rising(path):
        sums = [task.id.split("+") for task in PythonSource.open(path, {}, EXAMPLES).tasks]
        return sum(int(a) < int(b) for a, b in sums if a != b) / len(sums)

    assert rising("arithmetic.py:heldout_tasks") == pytest.approx(rising("arithmetic.py:train_tasks"), abs=0.05)
