"""A key of ours that was renamed works for one release under its old name, and says what it is called now."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

import loopwright
from loopwright.cli import main
from loopwright.config import Loaded, RunConfig, load
from loopwright.config.fields import options
from loopwright.config.migration import renamed
from loopwright.config.migration.renamed import Renamed
from loopwright.runs.run_folder import RunFolder

LoadText = Callable[..., Loaded]

TABLE = (
    Renamed("rollout.heat", "rollout.temperature", since="0.2.0", gone="0.3.0"),
    Renamed("penalty.weight", "learner.kl.coefficient", since="0.2.0", gone="0.3.0"),
    Renamed("task_sets.N.agent.scorer", "task_sets.N.agent.judger", since="0.2.0", gone="0.3.0"),
    Renamed("judgers.NAME.deadline", "judgers.NAME.timeout_seconds", since="0.2.0", gone="0.3.0"),
)
HEAT = "rollout.heat: is called rollout.temperature since 0.2.0; 0.3.0 will not read the old name"


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renamed, "RENAMED", TABLE)


def source_of(loaded: Loaded, name: str) -> str:
    return next(str(setting.source) for setting in loaded.settings() if setting.name == name)


def test_an_old_name_sets_the_new_key_and_is_its_source(load_text: LoadText, minimal: str) -> None:
    loaded = load_text(minimal + "rollout: {heat: 0.5, top_k: 3}\n")
    assert (loaded.config.rollout.temperature, loaded.config.rollout.top_k) == (0.5, 3)
    assert source_of(loaded, "rollout.temperature") == "run.yaml:6, rollout.heat"
    assert [warning for warning in loaded.warnings if "heat" in warning] == [
        f"{HEAT} (run.yaml:6) -> write rollout.temperature"
    ]


def test_a_later_layer_wins_under_the_old_name_too(load_text: LoadText, minimal: str) -> None:
    text, env = minimal + "rollout: {heat: 0.5}\n", {"LOOPWRIGHT_ROLLOUT__HEAT": "0.6"}
    assert load_text(text, env=env).config.rollout.temperature == 0.6
    loaded = load_text(text, "rollout.heat=0.7", env=env)
    assert loaded.config.rollout.temperature == 0.7
    assert source_of(loaded, "rollout.temperature") == "command line, rollout.heat"
    assert len([warning for warning in loaded.warnings if "heat" in warning]) == 1


def test_both_names_have_to_say_the_same(
    load_text: LoadText, problems_of: Callable[..., list[str]], minimal: str
) -> None:
    (problem,) = problems_of(minimal + "rollout: {heat: 0.5}\n", "rollout.temperature=0.7")
    assert problem.startswith(
        "rollout.temperature: rollout.heat makes it 0.5 (run.yaml:6), but it is 0.7 (command line)"
    )
    assert problem.endswith("-> keep one of the two")
    assert load_text(minimal + "rollout: {heat: 0.5, temperature: 0.5}\n").config.rollout.temperature == 0.5


def test_a_section_that_held_nothing_else_goes_with_it(load_text: LoadText, minimal: str) -> None:
    loaded = load_text(minimal + "penalty: {weight: 0.25}\n")
    assert loaded.config.learner.kl is not None
    assert loaded.config.learner.kl.coefficient == 0.25


def test_items_of_lists_and_mappings_are_found_and_named_as_the_user_wrote_them(load_text: LoadText) -> None:
    text = """
model: {path: smollm2}
data: {kind: jsonl, path: tasks.jsonl}
agent: {kind: single_turn, scorer: mine}
judgers: {mine: {kind: native, path: "mine.py:judge", deadline: 5}}
trainer: {run_dir: runs/x, steps: 10}
"""
    loaded = load_text(text)
    assert loaded.config.task_sets[0].agent.judger == "mine"
    assert loaded.config.judgers["mine"].model_dump()["timeout_seconds"] == 5
    assert any(warning.startswith("agent.scorer: is called agent.judger since") for warning in loaded.warnings)
    assert any("judgers.mine.deadline: is called judgers.mine.timeout_seconds" in each for each in loaded.warnings)
    values = yaml.safe_load(text)
    values["task_sets"] = [
        {"name": name, "data": values["data"], "agent": values["agent"]} for name in ("first", "second")
    ]
    del values["data"], values["agent"]
    loaded = load_text(yaml.safe_dump(values))
    assert [task_set.agent.judger for task_set in loaded.config.task_sets] == ["mine", "mine"]
    assert any("task_sets.1.agent.scorer: is called task_sets.1.agent.judger" in each for each in loaded.warnings)


@pytest.fixture
def file(tmp_path: Path, minimal: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "2+2?", "truth": 4}\n')
    file = tmp_path / "run.yaml"
    file.write_text(minimal.replace("smollm2", "./nowhere") + "rollout: {heat: 0.5}\n")
    (tmp_path / "nowhere").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "nowhere" / name).write_text("{}")
    return file


def end_here(work: Coroutine[Any, Any, Any]) -> NoReturn:
    """Instead of loading the model."""
    work.close()
    raise SystemExit


@pytest.mark.parametrize("command", ["config", "check", "train", "eval", "rollout"])
def test_every_command_that_reads_a_config_warns_once(
    file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in ("train", "eval", "rollout"):
        monkeypatch.setattr(f"loopwright.cli.{name}.run_async", end_here)
    with file.open("a") as opened:
        opened.write(
            "eval: {data: {kind: jsonl, path: tasks.jsonl}, agent: {kind: single_turn, judger: integer_answer}}\n"
        )
    with pytest.raises(SystemExit):
        main([command, str(file)])
    out, err = capfd.readouterr()
    assert err.count(f"warning: {HEAT}") == 1, (out, err)
    assert HEAT not in out


def test_migrate_prints_the_new_name(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["migrate", str(file)])
    out, err = capfd.readouterr()
    assert not left.value.code
    assert yaml.safe_load(out)["rollout"] == {"temperature": 0.5}
    assert HEAT in err


def test_a_run_that_an_earlier_version_began_goes_on(load_text: LoadText, minimal: str, tmp_path: Path) -> None:
    """Its folder has the old name, and the user's file may have either."""
    old = load_text(minimal, "rollout.temperature=0.5").config.model_dump(mode="json")
    old["rollout"]["heat"] = old["rollout"].pop("temperature")
    run = tmp_path / "run"
    with RunFolder.open(run, old):
        pass
    for setting in ("rollout.heat=0.5", "rollout.temperature=0.5"):
        with RunFolder.open(run, load_text(minimal, setting).config.model_dump(mode="json")) as folder:
            stored = folder.stored_config()
            assert stored is not None
            assert RunConfig.model_validate(stored).rollout.temperature == 0.5
    assert load(run / "config.yaml").config.rollout.temperature == 0.5


def plain(option: str) -> str:
    """The dotted name of an option, without the kinds of the sections round it."""
    return re.sub(r"\[\w+\]", "", option.partition(": ")[0])


def release(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_every_option_of_an_earlier_release_still_sets_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    known = {plain(option) for option in options()} | {row.old for row in renamed.RENAMED}
    lists = sorted((Path(__file__).parents[1] / "compat").glob("*/options.txt"))
    assert lists
    for file in lists:
        assert {plain(option) for option in file.read_text().splitlines()} <= known, file


def test_the_table_names_what_is_there_and_no_row_outlives_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    known = {plain(option) for option in options()}
    for row in renamed.RENAMED:
        assert row.new in known, f"{row.new} is no option"
        assert row.old not in known, f"{row.old} is an option again"
        assert release(row.since) <= release(loopwright.__version__) < release(row.gone), f"remove {row.old}"
