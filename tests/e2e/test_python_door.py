"""Runs that a Python program opens: from a file, a mapping or the schema, with objects for the user's code."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file

import loopwright
import loopwright.sync
from loopwright import Episode, Message, Policy, Scores, Task
from loopwright.build import open_run as open_loaded
from loopwright.cli import main
from loopwright.cli.show_errors import exit_code
from loopwright.config import RunConfig, load
from loopwright.errors import BudgetError, ConfigChangedError, ConfigError, LearnerError, RunError
from loopwright.track.jsonl import read_jsonl

WriteConfig = Callable[..., Path]
EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = json.loads((EXAMPLES / "notebook.ipynb").read_text("utf-8"))


async def vowels(task: Task, episode: Episode) -> float:
    return sum(letter in "aeiou" for letter in episode.answer) / 4


def importable_advantage(groups: Sequence[Scores]) -> list[list[float]]:
    return [[reward - min(group.rewards) for reward in group.rewards] for group in groups]


class AskOnce:
    """An agent loop that is made by its user."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        question = {"role": "user", "content": f"{self.prefix}{task.messages[0]['content']}"}
        return [question, (await policy.reply([question])).message]


@pytest.fixture
def config(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """A config without files: the user's code is here."""
    agent = {"kind": "single_turn", "judger": "vowels"}
    return {
        "model": {"path": tiny_model, "threads": 1},
        "data": lambda: [Task.ask(f"t{i}", f"What is {i}+{i}?", truth=2 * i) for i in range(12)],
        "agent": agent,
        "judgers": {"vowels": vowels},
        "rollout": {"samples_per_task": 4, "max_new_tokens": 8},
        "learner": {"lr": 1e-2},
        "trainer": {"run_dir": tmp_path / "run", "steps": 3, "groups_per_step": 3, "checkpoint_every": 2},
        "eval": {"data": lambda: [Task.ask(f"e{i}", f"What is {i}+1?") for i in range(5)], "agent": agent},
        "track": {"report": False},
    }


def stored_config(folder: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((folder / "config.yaml").read_text()))


def weights(folder: Path) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in load_file(folder / "export" / "model.safetensors").items()}


# The examples


def test_the_example_script_trains(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = EXAMPLES / "train_from_python.py"
    arguments = [f"model.path={tiny_model}", f"trainer.run_dir={tmp_path / 'run'}", "trainer.steps=2"]
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    runpy.run_path(str(script), run_name="__main__")
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said[:2]] == ["step 1", "step 2"]
    assert len(said) == 5
    assert stored_config(tmp_path / "run")["judgers"]["exact"]["path"] == "object:__main__.exact"


def test_the_lines_of_the_readme_train(
    write_config: WriteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judgers = {"exact": {"kind": "native", "path": "judger.py:judge"}}
    file = write_config(judgers=judgers, agent={"kind": "single_turn", "judger": "exact"}, eval=None)
    file.rename(tmp_path / "train.yaml")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(
        r"```python\n(import loopwright\n.*?)```", (EXAMPLES.parent / "README.md").read_text(), re.DOTALL
    )
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[:3]] == ["1", "2", "3"]


async def run_notebook(cells: list[dict[str, Any]], change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Execute the code cells one after the other, as a notebook's kernel does; `change` may change their `config`."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            code = compile("".join(cell["source"]), cell["id"], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waiting = eval(code, names)
            if waiting is not None:
                await waiting
            if "config" in names and "run" not in names:
                change(names["config"])
    return names


async def test_the_notebook_runs_cell_by_cell(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shrink(config: dict[str, Any]) -> None:
        config["model"]["path"] = tiny_model
        config["trainer"]["run_dir"] = tmp_path / "run"
        config["trainer"]["steps"] = 3

    names = await run_notebook(NOTEBOOK["cells"], shrink)
    assert names["run"].is_finished
    assert "eval/eval/greedy/reward" in names["before"]
    assert (tmp_path / "run" / "export").exists()
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[4:6]] == ["1", "2"]


@pytest.mark.real
@pytest.mark.timeout(120)
async def test_the_notebook_runs_with_the_real_model(tmp_path: Path) -> None:
    def shrink(config: dict[str, Any]) -> None:
        config["trainer"] = {"run_dir": tmp_path / "run", "steps": 2, "groups_per_step": 2}

    names = await run_notebook(NOTEBOOK["cells"], shrink)
    assert names["run"].version == 2


# Three ways to give a config


async def test_a_file_a_mapping_and_the_schema_describe_the_same_run(write_config: WriteConfig, tmp_path: Path) -> None:
    file = write_config(track__report=False)
    mapping, base = yaml.safe_load(file.read_text()), file.parent
    configs: dict[str, Any] = {"file": str(file), "mapping": mapping, "schema": load(file).config}
    stored = []
    for name, config in configs.items():
        overrides = {"trainer.run_dir": tmp_path / name, "trainer.steps": 1}
        async with loopwright.open_run(config, overrides, base=base, cache=tmp_path) as run:
            assert await run.train()
        stored.append({**stored_config(tmp_path / name), "trainer": None})
    assert isinstance(configs["schema"], RunConfig)
    assert stored[0] == stored[1] == stored[2]


async def test_a_run_of_the_command_line_goes_on_from_python(write_config: WriteConfig) -> None:
    file = write_config()
    async with open_loaded(load(file), cache=file.parent, stop=asyncio.Event()) as run:
        await run.step()
    async with loopwright.open_run(file, ["trainer.steps=4"]) as run:
        assert run.version == 1
        assert [step.number async for step in run.steps()] == [2, 3, 4]


# Objects


async def test_objects_without_an_import_path_train_and_are_stored_by_their_qualified_names(
    config: dict[str, Any], tmp_path: Path
) -> None:
    seen: list[str] = []

    def best(groups: Sequence[Scores]) -> list[list[float]]:
        seen.append("advantage")
        return [[float(reward == max(group.rewards)) for reward in group.rewards] for group in groups]

    def loss(batch: Any) -> Any:
        seen.append("loss")
        return -batch.advantages * batch.logprobs

    config["agent"] = {"kind": "python", "path": AskOnce("Well. "), "judger": "vowels"}
    config["judgers"] = {"vowels": lambda task, episode: float(len(seen) >= 0) * len(episode.answer) / 8}
    config["learner"] |= {"advantage": best, "loss": loss}
    async with loopwright.open_run(config) as run:
        await run.step()
        asked = {rollout.episode.messages[0]["content"][:6] for rollout in run.trajectories(1) if rollout.episode}
    assert asked == {"Well. "}
    assert set(seen) == {"advantage", "loss"}
    stored = stored_config(tmp_path / "run")
    here = f"object:{__name__}"
    assert stored["task_sets"][0]["agent"]["path"] == f"{here}.AskOnce()"
    test = "test_objects_without_an_import_path_train_and_are_stored_by_their_qualified_names.<locals>"
    assert stored["learner"]["advantage"]["path"] == f"{here}.{test}.best"
    assert stored["judgers"]["vowels"]["path"] == f"{here}.{test}.<lambda>"
    tasks = [stored["task_sets"][0]["data"]["path"], stored["eval"]["task_sets"][0]["data"]["path"]]
    assert tasks == [f"{here}.config.<locals>.<lambda>", f"{here}.config.<locals>.<lambda>#2"]


async def test_an_object_that_can_be_imported_is_stored_by_its_import_path(
    config: dict[str, Any], tmp_path: Path
) -> None:
    config["learner"]["advantage"] = importable_advantage
    async with loopwright.open_run(config):
        pass
    stored = stored_config(tmp_path / "run")
    assert stored["learner"]["advantage"]["path"] == f"{__name__}:importable_advantage"
    assert stored["judgers"]["vowels"]["path"] == f"{__name__}:vowels"


async def test_a_run_goes_on_with_the_same_objects_only(config: dict[str, Any]) -> None:
    def first(groups: Sequence[Scores]) -> list[list[float]]:
        return importable_advantage(groups)

    def second(groups: Sequence[Scores]) -> list[list[float]]:
        return importable_advantage(groups)

    config["learner"]["advantage"] = first
    async with loopwright.open_run(config) as run:
        await run.step()
    async with loopwright.open_run(config) as run:
        assert run.version == 1
    with pytest.raises(ConfigChangedError) as caught:
        await loopwright.open_run(config, {"learner.advantage": second})
    (change,) = caught.value.facts["changes"]
    assert change.startswith("learner.advantage.path: 'object:")
    assert ".first' -> 'object:" in change
    async with loopwright.open_run(config, {"learner.advantage": second}, allow_config_change=True) as run:
        assert run.version == 1


@pytest.mark.parametrize("command", ["train", "eval", "rollout"])
async def test_the_command_line_refuses_a_run_that_needs_objects(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # or the command would choose for this process
    config["judgers"] = {"vowels": lambda task, episode: 1.0}
    async with loopwright.open_run(config) as run:
        await run.step()
    where = run.path / "config.yaml" if command == "train" else run.path
    with pytest.raises(SystemExit) as caught:
        main([command, str(where)])
    assert caught.value.code == exit_code(ConfigError("", remedy=""))
    said = " ".join(capsys.readouterr().err.split())
    assert "judgers.vowels.path: 'object:" in said
    assert "which only the Python program that defines it can give" in said
    assert "open the run from that program with loopwright.open_run" in said


async def test_a_judger_may_be_an_object_with_a_method(config: dict[str, Any], tmp_path: Path) -> None:
    class Ranking:
        async def judge_group(self, task: Task, episodes: Sequence[Episode]) -> list[float]:
            return [float(place) for place in range(len(episodes))]

    config["judgers"] = {"vowels": Ranking()}
    async with loopwright.open_run({**config, "eval": None}) as run:
        scores = [rollout.score for rollout in await run.roll_out(groups=1)]
    assert scores == [0.0, 1.0, 2.0, 3.0]
    assert stored_config(tmp_path / "run")["judgers"]["vowels"]["per"] == "group"


async def test_what_is_no_judger_is_refused_before_a_model_is_loaded(config: dict[str, Any]) -> None:
    config["judgers"] = {"vowels": object()}
    with pytest.raises(ConfigError, match="can neither be called nor has a method `judge`"):
        await loopwright.open_run(config)


async def test_a_loop_that_is_made_already_takes_no_args(config: dict[str, Any]) -> None:
    config["agent"] = {"kind": "python", "path": AskOnce("Well. "), "judger": "vowels", "args": {"prefix": "Oh. "}}
    with pytest.raises(ConfigError, match=r"made already, and agent\.args are"):
        await loopwright.open_run(config)


async def test_a_judger_without_an_import_path_runs_in_a_thread_and_its_mistakes_are_told(
    config: dict[str, Any],
) -> None:
    threads: set[str] = set()

    def broken(task: Task, episode: Episode) -> float:
        threads.add(threading.current_thread().name)
        raise ValueError("no idea")

    config["judgers"] = {"vowels": broken}
    config["produce"] = {"failure_budget": 1, "judge_attempts": 1}
    async with loopwright.open_run(config) as run:
        with pytest.raises(BudgetError, match="no idea"):
            await run.step()
        with pytest.raises(RunError, match="a step broke"):
            await run.step()
    assert threads == {"loopwright-function"}


# Step by step


async def test_steps_one_by_one_train_the_same_weights_as_a_whole_run_whatever_is_done_in_between(
    config: dict[str, Any], tmp_path: Path
) -> None:
    config["trainer"] |= {"deterministic": True, "checkpoint_every": 3}
    async with loopwright.open_run(config, {"trainer.run_dir": tmp_path / "whole"}) as run:
        assert await run.train()
    async with loopwright.open_run(config, {"trainer.run_dir": tmp_path / "stepped"}) as run:
        before = await run.evaluate()
        first = await run.step()
        sampled = await run.roll_out(groups=2)
        await run.evaluate()
        again = await run.roll_out(groups=2)
    async with loopwright.open_run(config, {"trainer.run_dir": tmp_path / "stepped"}) as run:
        assert run.version == 1, "what was learned is saved when the run is closed"
        steps = [step async for step in run.steps()]
        assert await run.step() is None
        after = await run.evaluate()

    assert first is not None
    assert [(step.number, step.is_last) for step in (first, *steps)] == [(1, False), (2, False), (3, True)]
    assert "eval/eval/greedy/reward" in steps[-1].metrics
    assert steps[-1].metrics["eval/eval/sampled/reward"] == after["eval/eval/sampled/reward"]
    assert {"reward/mean", "learner/loss", "time/rollout"} <= set(steps[0].metrics)
    assert [len(sampled), {rollout.key.draw for rollout in sampled}] == [8, {0, 1}]
    assert [rollout.episode and rollout.episode.answer for rollout in sampled] == [
        rollout.episode and rollout.episode.answer for rollout in again
    ]
    records = read_jsonl(tmp_path / "stepped" / "metrics.jsonl")
    evaluated = [record["step"] for record in records if "eval/eval/greedy/reward" in record]
    assert evaluated == [0, 1, 3, 3], "the evaluation that was due before the first step is not made twice"
    assert before.keys() == after.keys()
    whole, stepped = weights(tmp_path / "whole"), weights(tmp_path / "stepped")
    assert all(np.array_equal(whole[name], stepped[name]) for name in whole)


async def test_a_run_that_is_stopped_says_so_and_goes_on_later(config: dict[str, Any], tmp_path: Path) -> None:
    async with loopwright.open_run(config) as run:
        await run.step()
        run.stop()
        assert await run.step() is None
        assert not await run.train()
        assert not run.is_finished
        with pytest.raises(RunError, match="the run is to stop"):
            await run.evaluate()
    assert (tmp_path / "run" / "checkpoints" / "step-000001").exists()
    async with loopwright.open_run(config) as run:
        assert [step.number async for step in run.steps()] == [2, 3]


async def test_a_step_that_broke_is_not_saved_and_nothing_goes_on_after_it(
    config: dict[str, Any], tmp_path: Path
) -> None:
    broken = [False]

    def fails(groups: Sequence[Scores]) -> list[list[float]]:
        if broken[0]:
            raise ValueError("no idea")
        return importable_advantage(groups)

    config["learner"]["advantage"] = fails
    async with loopwright.open_run(config) as run:
        await run.step()
        broken[0] = True
        with pytest.raises(LearnerError, match="no idea"):
            await run.step()
        with pytest.raises(RunError, match="a step broke"):
            await run.evaluate()
    assert not (tmp_path / "run" / "checkpoints" / "step-000001").exists()


async def test_a_step_that_was_cancelled_can_be_made_again(config: dict[str, Any]) -> None:
    waits = asyncio.Event()

    async def slow(task: Task, episode: Episode) -> float:
        await waits.wait()
        return await vowels(task, episode)

    config["judgers"] = {"vowels": slow}
    async with loopwright.open_run({**config, "eval": None}) as run:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run.step(), 0.3)
        waits.set()
        assert [step.number async for step in run.steps()] == [1, 2, 3]
    assert len(list(run.trajectories())) == 36


async def test_a_step_that_is_cancelled_while_it_learns_is_finished_first(config: dict[str, Any]) -> None:
    learning = threading.Event()

    def slow(groups: Sequence[Scores]) -> list[list[float]]:
        learning.set()
        time.sleep(0.1)
        return importable_advantage(groups)

    config["learner"]["advantage"] = slow
    async with loopwright.open_run(config) as run:
        await run.step()
        learning.clear()
        step = asyncio.create_task(run.step())
        await asyncio.to_thread(learning.wait)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert run.version == 2
    async with loopwright.open_run(config) as run:
        assert run.version == 2, "what was learned is saved when the run is closed"
        assert await run.train()
    records = read_jsonl(run.path / "metrics.jsonl")
    assert [record["step"] for record in records if "learner/loss" in record] == [1, 2, 3]
    assert [len(list(run.trajectories(step))) for step in (1, 2, 3)] == [12, 12, 12]


@pytest.mark.parametrize("over_sample", [0.0, 1.0])
async def test_a_step_that_is_cancelled_anywhere_can_be_made_again(config: dict[str, Any], over_sample: float) -> None:
    config |= {"eval": None, "produce": {"over_sample": over_sample}}
    config["trainer"] |= {"steps": 20, "checkpoint_every": 20}
    async with loopwright.open_run(config) as run:
        await run.step()
        for delay in range(20):
            step = asyncio.create_task(run.step())
            await asyncio.sleep(delay / 1000)
            step.cancel()
            await asyncio.wait({step})
        assert await run.train()
    keys = [rollout.key for rollout in run.trajectories()]
    assert (len(keys), len(set(keys))) == (20 * 12, 20 * 12)


async def test_a_run_does_one_thing_at_a_time_and_nothing_after_it_is_closed(config: dict[str, Any]) -> None:
    run = await loopwright.open_run(config)
    first = asyncio.create_task(run.step())
    await asyncio.sleep(0)
    with pytest.raises(RunError, match="the run is busy with a step"):
        await run.evaluate()
    await first
    await run.close()
    with pytest.raises(RunError, match="the run is closed"):
        await run.step()
    assert len(list(run.trajectories(1))) == 12


async def test_a_run_that_is_closed_while_it_trains_is_stopped_and_saved(config: dict[str, Any]) -> None:
    config["eval"] = None
    config["trainer"] |= {"steps": 1000, "checkpoint_every": 1000}
    run = await loopwright.open_run(config)
    await run.step()
    training = asyncio.create_task(run.train())
    await asyncio.sleep(0.05)
    await run.close()
    assert await training is False
    trained = run.version
    assert trained < 1000
    with pytest.raises(RunError, match="the run is closed"):
        await run.step()
    async with loopwright.open_run(config) as run:
        assert run.version == trained


async def test_a_relative_run_dir_stays_where_it_was_when_the_run_was_opened(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with loopwright.open_run(config, {"trainer.run_dir": "relative/run"}, base=tmp_path / "elsewhere") as run:
        await run.step()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert await run.train()
    assert run.path == tmp_path / "relative" / "run"
    assert stored_config(run.path)["trainer"]["run_dir"] == "relative/run"
    assert (run.path / "checkpoints" / "step-000003").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("groups", [0, 2.5, "2", None])
async def test_what_is_no_number_of_groups_is_refused(config: dict[str, Any], groups: Any) -> None:
    async with loopwright.open_run(config) as run:
        with pytest.raises(RunError, match="groups cannot be sampled"):
            await run.roll_out(groups)


@pytest.mark.parametrize("overrides", [None, 3, {3: 4}, [3], "trainer.steps=3"])
async def test_what_are_no_overrides_is_refused(config: dict[str, Any], overrides: Any) -> None:
    with pytest.raises(ConfigError, match=r"overrides (are|hold)") as caught:
        loopwright.open_run(config, overrides)
    assert "give a mapping" in caught.value.remedy


def test_an_empty_config_says_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match="model: missing"):
        loopwright.open_run({})


async def test_trajectories_hold_messages_tokens_and_rewards(config: dict[str, Any]) -> None:
    async with loopwright.open_run(config) as run:
        with pytest.raises(RunError, match="no rollouts of step 1"):
            run.trajectories(1)
        await run.train()
        rollouts = list(run.trajectories(step=2))
        everything = list(run.trajectories())
    assert (len(rollouts), len(everything)) == (12, 36)
    for rollout in rollouts:
        assert rollout.episode is not None
        (chain,) = rollout.episode.chains
        assert rollout.episode.messages[-1]["role"] == "assistant"
        assert len(chain.ids) == len(chain.mask) == len(chain.logprobs)
        assert {int(version) for version in chain.versions[chain.mask]} == {1}
        assert rollout.score == await vowels(rollout.task, rollout.episode)


async def test_a_run_that_keeps_its_rollouts_in_memory_has_no_trajectories(config: dict[str, Any]) -> None:
    async with loopwright.open_run(config, {"buffer.kind": "memory"}) as run:
        await run.step()
        with pytest.raises(RunError, match="stores no rollouts"):
            run.trajectories()


async def test_an_error_of_a_run_that_was_awaited_shows_no_secret(config: dict[str, Any]) -> None:
    def tells(groups: Sequence[Scores]) -> list[list[float]]:
        raise ValueError("the key is sk-0123456789abcdef")

    config["learner"]["advantage"] = tells
    config["judgers"]["llm"] = {
        "kind": "llm",
        "base_url": "http://127.0.0.1:9/v1",
        "model": "judge",
        "api_key_env": "JUDGE_KEY",
    }
    config["judgers"]["both"] = {"kind": "composed", "by_source": {"never": "llm"}, "default": "vowels"}
    config["agent"] = {"kind": "single_turn", "judger": "both"}
    run = await loopwright.open_run({**config, "eval": None}, env={"JUDGE_KEY": "sk-0123456789abcdef"})
    try:
        with pytest.raises(LearnerError, match="the key is") as caught:
            await run.step()
    finally:
        await run.close()
    assert "sk-0123456789abcdef" not in str(caught.value)


async def test_the_given_environment_reaches_the_workers_of_a_judger(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "by_variable.py").write_text("import os\ndef judge(task, episode): return float(os.environ['BONUS'])\n")
    config["judgers"] = {"vowels": {"kind": "native", "path": "by_variable.py:judge", "env": ["BONUS"]}}
    async with loopwright.open_run(config, base=tmp_path, env={"BONUS": "7"}) as run:
        assert [rollout.score for rollout in await run.roll_out(groups=1)] == [7.0] * 4


# Without an event loop


def test_the_sync_door_trains_evaluates_and_samples(config: dict[str, Any], tmp_path: Path) -> None:
    with loopwright.sync.open_run(config) as run:
        assert (run.version, run.path) == (0, tmp_path / "run")
        assert "eval/eval/greedy/reward" in run.evaluate()
        assert [step.number for step in run.steps()] == [1, 2, 3]
        assert run.is_finished
        assert run.train()
        assert len(run.roll_out(groups=1)) == 4
        assert len(list(run.trajectories(3))) == 12
    with pytest.raises(ConfigChangedError), loopwright.sync.open_run(config, {"learner.lr": 1e-3}):
        pass


def test_the_sync_door_saves_when_its_block_is_left_by_an_error(config: dict[str, Any]) -> None:
    def interrupted() -> None:
        with loopwright.sync.open_run(config) as run:
            run.step()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with loopwright.sync.open_run(config) as run:
        assert run.version == 1
        run.stop()
        assert run.step() is None


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C means what it means in a script, whichever command another test has called in this process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_the_sync_door_saves_when_a_step_is_interrupted(config: dict[str, Any]) -> None:
    async def interrupts(task: Task, episode: Episode) -> float:
        if presses:
            presses.pop()
            signal.raise_signal(signal.SIGINT)
        return await vowels(task, episode)

    presses: list[str] = []
    config["judgers"] = {"vowels": interrupts}
    with loopwright.sync.open_run(config) as run:
        run.step()
        presses.append("Ctrl-C")
        with pytest.raises(KeyboardInterrupt):
            run.train()
    with loopwright.sync.open_run(config) as run:
        assert run.version == 1
        assert run.train()


@pytest.mark.usefixtures("ctrl_c")
def test_the_sync_door_saves_when_the_learner_is_interrupted(config: dict[str, Any]) -> None:
    def interrupts(groups: Sequence[Scores]) -> list[list[float]]:
        if presses:
            presses.pop()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        return importable_advantage(groups)

    presses: list[str] = []
    config["learner"]["advantage"] = interrupts
    with loopwright.sync.open_run(config) as run:
        run.step()
        presses.append("Ctrl-C")
        with pytest.raises(KeyboardInterrupt):
            run.train()
    with loopwright.sync.open_run(config) as run:
        assert run.version == 2
        assert run.train()


def test_a_run_of_the_sync_door_that_is_closed_or_busy_says_so(config: dict[str, Any]) -> None:
    refused: list[RunError] = []

    async def calls_back(task: Task, episode: Episode) -> float:
        with pytest.raises(RunError, match="busy with another call") as caught:
            run.step()
        refused.append(caught.value)
        return await vowels(task, episode)

    config["judgers"] = {"vowels": calls_back}
    with loopwright.sync.open_run({**config, "eval": None}) as run:
        run.step()
    assert refused
    with pytest.raises(RunError, match="the run is closed"):
        run.train()
    run.stop()
    assert run.version == 1


async def test_the_sync_door_refuses_inside_an_event_loop(config: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="inside an event loop") as caught, loopwright.sync.open_run(config):
        pass
    assert "async with loopwright.open_run(config)" in caught.value.remedy
