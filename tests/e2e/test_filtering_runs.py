"""Whole runs with several sources, several task sets and dynamic sampling, as `loopwright train` makes them."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import load_file
from test_kill import course, finish, start, wait_for_step
from test_training import groups, metrics, run

from loopwright.cli import main
from loopwright.errors import BudgetError
from loopwright.runs.stored_run import StoredRun
from loopwright.types import Failed, GroupStatus

WriteConfig = Callable[..., Path]
EXAMPLES = Path(__file__).parents[2] / "examples"
AGENT = {"kind": "single_turn", "judger": "vowels"}

# Which groups are kept depends on their draw alone: two of seven, so that steps run short of groups.
FILTER = """
def keep(group):
    return group.draw % 7 < 2

def none(group):
    return False
"""


@pytest.fixture
def write_sets(write_config: WriteConfig, tmp_path: Path) -> WriteConfig:
    """Like `write_config`, with two task sets, 2:1, the first of them filtered."""

    def write(**changes: Any) -> Path:
        source = {"kind": "python", "path": "tasks.py:train"}
        file = write_config(eval=None, **changes)
        (tmp_path / "filters.py").write_text(FILTER)
        config = yaml.safe_load(file.read_text())
        del config["data"], config["agent"]
        config.setdefault(
            "task_sets",
            [
                {"name": "rare", "weight": 2, "data": source, "agent": AGENT, "filter": "filters.py:keep"},
                {"name": "plain", "data": source, "agent": AGENT},
            ],
        )
        file.write_text(yaml.safe_dump(config))
        return file

    return write


async def test_filtered_groups_are_kept_but_not_trained(write_sets: WriteConfig) -> None:
    folder = await run(write_sets(produce__filter_budget=4, learner__mini_batches=3, trainer__checkpoint_every=1))
    counts = groups(folder)
    assert counts["plain"] == {GroupStatus.CONSUMED: 3}
    assert set(counts["rare"]) == {GroupStatus.CONSUMED, GroupStatus.FILTERED}
    stored = StoredRun(folder.rollouts)
    trained = {r.key.draw for step in stored.steps() for r in stored.rollouts(step) if r.key.task_set == "rare"}
    filtered = {r.key.draw for r in stored.rollouts_in(GroupStatus.FILTERED)}
    assert all(draw % 7 < 2 for draw in trained)
    assert all(draw % 7 >= 2 for draw in filtered)
    assert trained | filtered == set(range(len(trained) + len(filtered))), "every draw is in exactly one place"
    assert sum(metrics(folder, "groups/filtered").values()) == len(filtered)
    assert set(metrics(folder, "groups/filtered/plain").values()) == {0.0}
    assert set(metrics(folder, "reward/mean/rare")) <= {1, 2, 3}
    assert set(metrics(folder, "reward/mean/plain")) == {1, 2, 3}
    assert set(metrics(folder, "learner/loss")) == {1, 2, 3}, "also a step with fewer groups than mini-batches"


async def test_a_run_that_filters_everything_stops_and_says_why(write_config: WriteConfig, tmp_path: Path) -> None:
    (tmp_path / "filters.py").write_text(FILTER)
    file = write_config(eval=None, produce__filter="filters.py:none", produce__filter_budget=5)
    with pytest.raises(
        BudgetError, match=r"step 1: .*'train': ([5-9]|1\d) groups in a row were filtered by filters\.py:none"
    ):
        await run(file)


def test_a_judger_that_always_fails_ends_in_the_budget_error_that_names_set_and_judger(
    write_sets: WriteConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = {"kind": "python", "path": "tasks.py:train"}
    sets = [
        {"name": "sound", "weight": 2, "data": source, "agent": AGENT},
        {"name": "broken", "weight": 1, "data": source, "agent": {**AGENT, "judger": "strict"}},
    ]
    file = write_sets(
        task_sets=sets,
        judgers__strict={"kind": "native", "path": "strict.py:judge", "timeout_seconds": 60},
        produce__failure_budget=3,
        produce__judge_attempts=1,
    )
    (tmp_path / "strict.py").write_text("def judge(task, episode):\n    raise KeyError('rubric')\n")
    with pytest.raises(SystemExit) as caught:
        main(["train", str(file)])
    err = " ".join(capfd.readouterr().err.split())
    assert caught.value.code == 1
    assert "task set 'broken', judger 'strict': 3 groups in a row failed" in err
    assert "KeyError" in err
    stored = StoredRun(tmp_path / "run" / "rollouts.sqlite")
    counts = stored.counts()
    assert counts["broken"][GroupStatus.FAILED] == 3
    assert counts["sound"][GroupStatus.COMPLETED] == 2, "the other one's groups wait, and nothing is pending"
    assert all(isinstance(r.reward, Failed) for r in stored.rollouts_in(GroupStatus.FAILED)), "no failure is a 0"


@pytest.mark.real
async def test_the_example_of_two_task_sets_trains_both(write_config: WriteConfig, tmp_path: Path) -> None:
    write_config()
    tiny = yaml.safe_load((tmp_path / "run.yaml").read_text())
    config = yaml.safe_load((EXAMPLES / "two_task_sets.yaml").read_text())
    assert [task_set["weight"] for task_set in config["task_sets"]] == [2, 1]
    shutil.copy(EXAMPLES / "arithmetic.py", tmp_path)
    config |= {"model": tiny["model"], "track": {"console": False}}
    config["rollout"]["max_new_tokens"] = 4
    config["trainer"] |= {"run_dir": str(tmp_path / "run"), "steps": 2, "groups_per_step": 3}
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump(config))
    folder = await run(file)
    assert groups(folder) == {"addition": {GroupStatus.CONSUMED: 4}, "gcd": {GroupStatus.CONSUMED: 2}}
    assert set(metrics(folder, "reward/mean/gcd")) == set(metrics(folder, "reward/mean/addition")) == {1, 2}


async def test_the_recipe_for_gsm8ks_format_trains(write_config: WriteConfig, tmp_path: Path) -> None:
    data = {"kind": "jsonl", "path": str(EXAMPLES / "gsm8k_made_up.jsonl"), "map": str(EXAMPLES / "gsm8k.py:task")}
    file = write_config(data=data, agent={"kind": "single_turn", "judger": "integer_answer"}, judgers={}, eval=None)
    folder = await run(file)
    tasks = {r.task.id: r.task for r in StoredRun(folder.rollouts).rollouts(1)}
    assert all(task.truth.lstrip("-").isdigit() and "<<" in task.metadata["solution"] for task in tasks.values())


@pytest.mark.real
def test_a_killed_deterministic_run_with_a_filter_ends_bit_for_bit_the_same(
    write_sets: WriteConfig, tmp_path: Path
) -> None:
    """D1, D3: what was filtered, and for how long, is known again after the kill."""
    settings = {"trainer__deterministic": True, "trainer__steps": 6, "produce__filter_budget": 4}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(write_sets(**settings, trainer__run_dir=str(whole))))
    file = write_sets(**settings, trainer__run_dir=str(killed))
    process = start(file)
    wait_for_step(killed, 3, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "export").exists(), "it was interrupted too late to prove anything"
    finish(start(file))

    assert course(killed) == course(whole)
    ours, theirs = (load_file(folder / "export" / "model.safetensors") for folder in (killed, whole))
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    lived, died = (StoredRun(folder / "rollouts.sqlite").counts()["rare"] for folder in (whole, killed))
    for status in (GroupStatus.CONSUMED, GroupStatus.FILTERED):
        assert lived[status] == died[status] > 0
