"""One process per run folder, one config per run, and no stranger's file is ever touched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from loopwright.config import load
from loopwright.errors import ConfigChangedError, RunError, RunLockedError
from loopwright.runs import run_folder
from loopwright.runs.config_changes import config_changes
from loopwright.runs.run_folder import RunFolder

CONFIG: dict[str, Any] = {
    "model": {"path": "smollm2"},
    "learner": {"lr": 1e-5, "betas": (0.9, 0.999)},
    "task_sets": [{"name": "train", "weight": 1.0}],
    "produce": {"max_attempts": 3, "judge_attempts": 2, "failure_budget": 16, "filter_budget": 256},
    "trainer": {"run_dir": "runs/a", "steps": 30, "checkpoint_every": 10, "keep_checkpoints": 2, "export": True},
    "track": {"console": True},
}


def try_to_open(path: Path, config: dict[str, Any], **options: bool) -> None:
    with RunFolder.open(path, config, **options):
        pass


def changed(**changes: Any) -> dict[str, Any]:
    """CONFIG with some leaves changed: `changed(learner__lr=1)`."""
    config = {key: dict(value) if isinstance(value, dict) else value for key, value in CONFIG.items()}
    for name, value in changes.items():
        section, key = name.split("__")
        config[section][key] = value
    return config


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "a"


def test_a_new_run_gets_a_folder_with_its_config(path: Path) -> None:
    with RunFolder.open(path, CONFIG) as folder:
        assert folder.path == path
        stored = folder.stored_config()
    assert stored is not None
    assert stored["learner"] == {"lr": 1e-5, "betas": [0.9, 0.999]}


def test_the_same_command_goes_on_and_loses_nothing(path: Path) -> None:
    with RunFolder.open(path, CONFIG) as folder:
        folder.rollouts.write_text("rollouts")
    with RunFolder.open(path, CONFIG) as folder:
        assert folder.rollouts.read_text() == "rollouts"


def test_a_second_user_is_refused_and_told_who_is_there(path: Path) -> None:
    with RunFolder.open(path, CONFIG):
        with (
            pytest.raises(RunLockedError, match=f"in use by process {os.getpid()}") as caught,
            RunFolder.open(path, CONFIG),
        ):
            pass
        assert caught.value.facts["pid"] == os.getpid()
        with pytest.raises(RunLockedError):
            try_to_open(path, CONFIG, fresh=True)
    try_to_open(path, CONFIG)


def test_a_killed_process_leaves_no_lock(path: Path) -> None:
    child = """
        import pathlib, sys, time
        from loopwright.runs.run_folder import RunFolder
        with RunFolder.open(pathlib.Path(sys.argv[1]), {"a": 1}):
            print("locked", flush=True)
            time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(child), str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(RunLockedError, match=f"process {process.pid}"):
            try_to_open(path, {"a": 1})
        process.send_signal(signal.SIGKILL)
        process.wait()
    try_to_open(path, {"a": 1})


def test_the_lock_is_released_when_the_run_fails(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunFolder.open(path, CONFIG):
        raise ZeroDivisionError
    try_to_open(path, CONFIG)


def test_a_changed_config_is_shown_and_refused(path: Path) -> None:
    try_to_open(path, CONFIG)
    with pytest.raises(ConfigChangedError, match=r"learner.lr: 1e-05 -> 2e-05") as caught:
        try_to_open(path, changed(learner__lr=2e-5, model__path="other"))
    assert caught.value.facts["changes"] == ["model.path: 'smollm2' -> 'other'", "learner.lr: 1e-05 -> 2e-05"]
    assert "--allow-config-change" in caught.value.remedy
    try_to_open(path, CONFIG)  # the refused config was not stored


def test_an_allowed_change_becomes_the_config_of_the_run(path: Path) -> None:
    other = changed(learner__lr=2e-5)
    try_to_open(path, CONFIG)
    with RunFolder.open(path, other, allow_config_change=True) as folder:
        assert (folder.stored_config() or {})["learner"]["lr"] == 1e-5, "not before it is known that the run can go on"
        folder.adopt(other)
    try_to_open(path, other)


@pytest.mark.parametrize(
    "config",
    [
        changed(trainer__steps=60),
        changed(trainer__checkpoint_every=5),
        changed(trainer__keep_checkpoints=9),
        changed(trainer__run_dir="/elsewhere"),
        changed(trainer__export=False),
        changed(track__console=False),
        changed(track__report=True),
        *(changed(**{f"produce__{name}": 99}) for name in CONFIG["produce"]),
    ],
)
def test_some_settings_may_change_freely(path: Path, config: dict[str, Any]) -> None:
    try_to_open(path, CONFIG)
    with RunFolder.open(path, config) as folder:
        assert folder.stored_config() is not None
    try_to_open(path, config)


def test_settings_that_are_new_since_the_run_began_are_no_change_at_their_defaults() -> None:
    example = Path(__file__).parents[2] / "examples" / "agent_openai_tools.yaml"
    new = load(example, [], {}).config.model_dump(mode="json")
    old = json.loads(json.dumps(new))
    del old["task_sets"][0]["agent"]["train"], old["produce"]["kind"]
    assert config_changes(old, new) == []
    new["task_sets"][0]["agent"]["train"] = "main"
    assert config_changes(old, new) == ["task_sets.0.agent.train: 'all' -> 'main'"]


def test_where_something_runs_is_no_change() -> None:
    example = Path(__file__).parents[2] / "examples" / "agent_openai_tools.yaml"
    here = load(example, ["judgers.mine={kind: native, path: 'a.py:b'}"], {}).config.model_dump(mode="json")
    there = json.loads(json.dumps(here))
    for placed in (
        there["task_sets"][0]["agent"],
        there["judgers"]["mine"],
        there["rollout"]["engine"],
        there["gateway"],
    ):
        placed |= {"num_actors": 1, "num_cpus_per_actor": 0.25, "num_gpus_per_actor": 1.0, "memory_per_actor": 2**30}
    there["rollout"] |= {"nodes": 1}
    there["cluster"] |= {"address": "auto", "labels": {"loops": {"zone": "a"}}}
    assert config_changes(here, there) == []
    assert config_changes(there, here) == []
    there["judgers"]["mine"]["path"] = "a.py:c"
    assert config_changes(here, there) == ["judgers.mine.path: 'a.py:b' -> 'a.py:c'"]


def test_fewer_steps_are_a_change() -> None:
    assert config_changes({"trainer": {"steps": 30}}, {"trainer": {"steps": 20}}) == ["trainer.steps: 30 -> 20"]


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_more_steps_are_a_change_when_the_learning_rate_falls_towards_the_last_one(schedule: str) -> None:
    old = {"learner": {"schedule": schedule}, "trainer": {"steps": 30}}
    new = {"learner": {"schedule": schedule}, "trainer": {"steps": 60}}
    (change,) = config_changes(old, new)
    assert change.startswith("trainer.steps: 30 -> 60 (")
    assert schedule in change


def test_more_steps_are_no_change_under_a_constant_learning_rate() -> None:
    old = {"learner": {"schedule": "constant"}, "trainer": {"steps": 30}}
    assert config_changes(old, {**old, "trainer": {"steps": 60}}) == []


def test_differences_in_shape_are_named() -> None:
    old = {"task_sets": [{"name": "a"}], "eval": None, "stop": []}
    new = {"task_sets": [{"name": "a"}, {"name": "b"}], "eval": {"every": 3}, "stop": ["x"]}
    assert config_changes(old, new) == [
        "eval: None -> (not set)",
        "stop: [] -> (not set)",
        "task_sets.1.name: (not set) -> 'b'",
        "eval.every: (not set) -> 3",
        "stop.0: (not set) -> 'x'",
    ]


def test_fresh_empties_a_run(path: Path) -> None:
    with RunFolder.open(path, CONFIG) as folder:
        folder.rollouts.write_text("old")
        folder.checkpoints.mkdir()
        (folder.checkpoints / "step-000010").mkdir()
        (path / "link").symlink_to(path.parent)
    with RunFolder.open(path, changed(learner__lr=2e-5), fresh=True) as folder:
        assert {entry.name for entry in path.iterdir()} == {"lock", "config.yaml", "id"}
    assert path.parent.is_dir()


def test_fresh_works_on_a_run_with_an_unreadable_config(path: Path) -> None:
    with RunFolder.open(path, CONFIG) as folder:
        folder.config.write_text(run_folder.HEADER + "a: [")
    with pytest.raises(RunError, match=r"config.yaml cannot be read"):
        try_to_open(path, CONFIG)
    try_to_open(path, CONFIG, fresh=True)


def test_an_interrupted_fresh_is_finished_by_the_next_command(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class KilledError(BaseException):
        pass

    def killed(folder: Path) -> None:
        raise KilledError

    with RunFolder.open(path, CONFIG) as folder:
        folder.checkpoints.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KilledError):
            try_to_open(path, CONFIG, fresh=True)
    with RunFolder.open(path, CONFIG) as folder:
        assert not folder.checkpoints.exists(), "half a run must not be resumed"


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", ["config.yaml", "thesis.tex"])
def test_a_folder_that_is_not_a_run_is_left_alone(path: Path, fresh: bool, name: str) -> None:
    path.mkdir(parents=True)
    (path / name).write_text("mine: true\n")
    with pytest.raises(RunError, match=f"is not a Loopwright run, and it is not empty: it holds {name}"):
        try_to_open(path, CONFIG, fresh=fresh)
    assert [entry.name for entry in path.iterdir()] == [name]


def test_a_run_that_died_while_it_began_can_begin_again(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "lock").write_text("1")
    (path / ".config.yaml.tmp").write_text("half")
    try_to_open(path, CONFIG)


def test_a_file_in_the_way_is_a_run_error(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("")
    with pytest.raises(RunError, match="is not a folder"):
        try_to_open(path, CONFIG)
    with pytest.raises(RunError, match="cannot be written"):
        try_to_open(path / "below", CONFIG)


def test_a_run_has_a_name_that_stays_and_that_a_fresh_one_does_not_inherit(path: Path) -> None:
    with RunFolder.open(path, CONFIG) as folder:
        name = folder.stored_id()
        assert len(name) == 16
    with RunFolder.open(path, CONFIG) as folder:
        assert folder.stored_id() == name
    with RunFolder.open(path, CONFIG, fresh=True) as folder:
        assert folder.stored_id() != name


def test_a_run_of_an_earlier_release_gets_a_name_and_loses_the_door_of_a_killed_process(path: Path) -> None:
    with RunFolder.open(path, CONFIG) as folder:
        folder.id.unlink()
        folder.door.write_text("{}")
    with RunFolder.open(path, CONFIG) as folder:
        assert folder.stored_id()
        assert not folder.door.exists()
