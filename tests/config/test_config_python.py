"""Configs that a Python program gives: what may be an object, how it is called, and what is refused."""

from __future__ import annotations

import functools
import json
from pathlib import Path, PurePosixPath
from types import FunctionType
from typing import Any

import pytest

from loopwright.config import NativeJudgerConfig, load_from_python, load_symbol
from loopwright.config.imports import split_symbol
from loopwright.config.objects import import_path, qualified_name
from loopwright.errors import ConfigError
from loopwright.types import TrainerKind


class Judge:
    """A judger as a class."""

    def judge(self, task: Any, episode: Any) -> float:
        return 1.0

    def __call__(self) -> None: ...


def nested() -> Any:
    def inner() -> None: ...

    return inner


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "hello"}')
    return {
        "model": {"path": "smollm2"},
        "data": {"kind": "jsonl", "path": tmp_path / "tasks.jsonl"},
        "agent": {"kind": "single_turn", "judger": "mine"},
        "judgers": {"mine": nested()},
        "trainer": {"run_dir": PurePosixPath("run"), "steps": 1, "kind": TrainerKind.COLOCATE},
    }


def problems_of(config: Any, overrides: Any = ()) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_from_python(config, overrides)
    found: list[str] = caught.value.facts["problems"]
    return found


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (json.dumps, "json:dumps"),
        (Judge, f"{__name__}:Judge"),
        (nested, f"{__name__}:nested"),
        (Judge.judge, None),
        (Judge().judge, None),
        (Judge(), None),
        (nested(), None),
        (lambda: None, None),
        (functools.partial(nested), None),
        (FunctionType(nested.__code__, {"__name__": "__main__"}), None),
    ],
    ids=qualified_name,
)
def test_only_what_stands_at_the_top_of_a_module_has_an_import_path(value: Any, path: str | None) -> None:
    assert import_path(value) == path
    assert path is None or load_symbol(path, Path()) is value


def test_what_a_config_file_named_keeps_the_path_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def judge(task, episode): return 1.0")
    judge = load_symbol("mine.py:judge", tmp_path)
    path = import_path(judge)
    assert path == f"{tmp_path / 'mine.py'}:judge"
    assert split_symbol(path, Path("elsewhere")).file == tmp_path / "mine.py"


def test_an_object_may_stand_for_a_section_or_for_its_path(given: dict[str, Any]) -> None:
    function = given["judgers"]["mine"]
    name = f"object:{__name__}.nested.<locals>.inner"
    loaded = load_from_python(given)
    assert loaded.config.judgers["mine"] == NativeJudgerConfig(path=name)
    assert loaded.objects == {name: function}

    given["judgers"]["mine"] = {"kind": "native", "path": function, "timeout_seconds": 2.0}
    assert load_from_python(given).config.judgers["mine"] == NativeJudgerConfig(path=name, timeout_seconds=2.0)
    named = load_from_python(given, {"judgers.mine.path": Judge}).config.judgers["mine"]
    assert named == NativeJudgerConfig(path=f"{__name__}:Judge", timeout_seconds=2.0)


def test_a_value_knows_that_a_program_gave_it(given: dict[str, Any]) -> None:
    settings = {one.name: str(one.source) for one in load_from_python(given, {"rollout.top_k": 5}).settings()}
    assert (settings["model.path"], settings["rollout.top_k"]) == ("Python", "Python")
    assert settings["rollout.top_p"] == "default"
    assert load_from_python(given, ["rollout.top_k=5"]).config.rollout.top_k == 5


def test_the_environment_wins_over_the_config_and_overrides_win_over_both(given: dict[str, Any]) -> None:
    env = {"LOOPWRIGHT_ROLLOUT__TOP_K": "7"}
    given["rollout"] = {"top_k": 3}
    assert load_from_python(given, (), env).config.rollout.top_k == 7
    assert load_from_python(given, {"rollout.top_k": 5}, env).config.rollout.top_k == 5


def test_the_program_keeps_its_config_as_it_is(given: dict[str, Any]) -> None:
    before = {name: dict(section) for name, section in given.items()}
    load_from_python(given, {"trainer.steps": 3})
    assert given == before


def test_an_object_where_only_data_may_stand_is_a_problem_with_its_place(given: dict[str, Any]) -> None:
    given["rollout"] = {"temperature": nested()}
    given["agent"]["args"] = {"tool": Judge()}
    first, second, *_ = problems_of(given)
    assert first.startswith(f"agent.args.tool: is the Python object {__name__}.Judge(), and only data may stand here")
    assert second.startswith("rollout.temperature: is the Python object")


def test_an_object_that_nobody_gave_is_a_problem(given: dict[str, Any]) -> None:
    given["judgers"] = {"mine": {"kind": "native", "path": "object:__main__.judge"}}
    given["agent"]["system"] = "object: answer in one word"
    (problem,) = problems_of(given)
    assert problem.startswith("judgers.mine.path: 'object:__main__.judge' is a Python object without an import path")
    assert "(Python) -> open the run from that program with loopwright.open_run" in problem
    with pytest.raises(ConfigError, match="which only the Python program that defines it can give"):
        load_symbol("object:__main__.judge", Path())


def test_a_mistake_in_a_mapping_is_told_as_in_a_file(given: dict[str, Any]) -> None:
    given["rollout"] = {"temprature": 0.7}
    (problem,) = problems_of(given)
    assert problem == "rollout.temprature: unknown setting (Python) -> did you mean 'temperature'?"


@pytest.mark.parametrize("config", [None, 3, ["model"], object])
def test_what_is_no_config_is_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match=f"a config cannot be made of a {type(config).__name__}") as caught:
        load_from_python(config)
    assert "the path of a config file, a mapping of sections, or a loopwright.config.RunConfig" in caught.value.remedy


def test_one_text_is_no_list_of_overrides(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="overrides are the text"):
        load_from_python(given, "rollout.temperature=0.7")
