"""The user's Python, by path: found, imported once, and blamed by line when it is broken."""

from __future__ import annotations

import json
import sys

import pytest

from loopwright.config import load_symbol
from loopwright.errors import ConfigError


@pytest.fixture(autouse=True)
def _same_import_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_file_is_imported_once_by_whatever_path(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "once.py").write_text("class Thing: ...\nother = Thing()\n")

    thing = load_symbol("sub/once.py:Thing", tmp_path)
    again = load_symbol("../sub/once.py:Thing", tmp_path / "sub")
    other = load_symbol("once.py:other", tmp_path / "sub")

    assert thing is again
    assert isinstance(thing, type)
    assert isinstance(other, thing)
    assert getattr(sys.modules[thing.__module__], "Thing") is thing  # noqa: B009


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tasks.py").write_text(f"name = {name!r}\n")
    assert load_symbol("a/tasks.py:name", tmp_path) == "a"
    assert load_symbol("b/tasks.py:name", tmp_path) == "b"


def test_modules_installed_or_beside_the_config(tmp_path):
    (tmp_path / "beside_the_config.py").write_text("value = 7\n")
    assert load_symbol("json:loads", tmp_path) is json.loads
    assert load_symbol("beside_the_config:value", tmp_path) == 7


def test_a_file_may_import_its_neighbours(tmp_path):
    (tmp_path / "the_neighbour.py").write_text("value = 7\n")
    (tmp_path / "importer.py").write_text("from the_neighbour import value\n")
    assert load_symbol("importer.py:value", tmp_path) == 7


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("tasks", "does not name a Python object"),
        ("tasks.py:", "does not name a Python object"),
        (":name", "does not name a Python object"),
        ("tasks.py:a-b", "does not name a Python object"),
        ("missing.py:name", "there is no such file"),
        ("no_such_module_here:name", "there is no module 'no_such_module_here'"),
        ("json.nothing:name", "there is no module 'json.nothing'"),
        ("tasks.py:trian", "did you mean tasks.py:train?"),
        ("json:laods", "did you mean json:loads?"),
        ("raises.py:x", "raises.py failed at raises.py:3: ZeroDivisionError"),
        ("needs.py:x", "needs.py failed at needs.py:1: ModuleNotFoundError"),
        ("quits.py:x", "quits.py failed at quits.py:2: SystemExit: 3"),
        ("syntax.py:x", "syntax.py failed at syntax.py:2: SyntaxError"),
    ],
)
def test_what_cannot_be_loaded_says_why(tmp_path, path, words):
    (tmp_path / "tasks.py").write_text("train = 1\n")
    (tmp_path / "raises.py").write_text("def f():\n    pass\nx = 1 / 0\n")
    (tmp_path / "needs.py").write_text("import no_such_thing_at_all\n")
    (tmp_path / "quits.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "syntax.py").write_text("a = 1\nx = = 2\n")
    with pytest.raises(ConfigError) as caught:
        load_symbol(path, tmp_path)
    assert words in str(caught.value)


def test_a_module_whose_own_import_fails_is_not_called_missing(tmp_path):
    (tmp_path / "broken_inside.py").write_text("import no_such_thing_at_all\n")
    with pytest.raises(ConfigError, match=r"importing broken_inside failed at broken_inside\.py:1"):
        load_symbol("broken_inside:x", tmp_path)


def test_a_mended_file_can_be_imported_again(tmp_path):
    file = tmp_path / "mended.py"
    file.write_text("raise ValueError\n")
    with pytest.raises(ConfigError):
        load_symbol("mended.py:x", tmp_path)
    file.write_text("x = 'a different size'\n")
    assert load_symbol("mended.py:x", tmp_path) == "a different size"
