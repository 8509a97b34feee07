"""`loopwright replay`: a train step that was recorded gives the same numbers again, and nothing is touched."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.build import open_run
from loopwright.cli import main
from loopwright.config import load
from loopwright.runs.replay import spans
from loopwright.runs.run_folder import RunFolder
from loopwright.track.jsonl import read_jsonl

WriteConfig = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command; gives exit code, stdout and stderr."""

    def run_it(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run_it


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, write_in: WriteConfig) -> RunFolder:
    """A deterministic run of five steps that was resumed after the third. With two mini-batches per step, it matters in
    which order the groups came."""
    folder = tmp_path_factory.mktemp("trained")
    changes = {
        "trainer__deterministic": True,
        "trainer__checkpoint_every": 2,
        "trainer__keep_checkpoints": 9,
        "learner__mini_batches": 2,
        "eval": None,
    }

    async def train(steps: int) -> RunFolder:
        file = write_in(folder, **changes, trainer__steps=steps)
        async with open_run(load(file), cache=folder, stop=asyncio.Event()) as run:
            await run.train()
            return run.folder

    asyncio.run(train(3))
    return asyncio.run(train(5))


@pytest.fixture
def run(trained: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy that the test may change."""
    return RunFolder(shutil.copytree(trained.path, tmp_path / "run"))


def content(folder: RunFolder) -> dict[str, bytes]:
    """All files but SQLite's own `-wal` and `-shm`, which any reader may leave."""
    files = [path for path in folder.path.rglob("*") if path.is_file() and "sqlite-" not in path.name]
    return {str(path.relative_to(folder.path)): path.read_bytes() for path in files}


def change_recorded(folder: RunFolder, step: int, name: str, factor: float) -> None:
    records = read_jsonl(folder.metrics)
    for record in records:
        if record["step"] == step and name in record:
            record[name] *= factor
    folder.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))


def change_config(folder: RunFolder, section: str, **changes: object) -> None:
    config = folder.stored_config()
    assert config is not None
    config[section] |= changes
    folder.adopt(config)


@pytest.mark.parametrize(("step", "start"), [(1, 0), (2, 0), (3, 2), (4, 3), (5, 4)])
def test_every_step_is_equal_bit_for_bit_from_the_nearest_checkpoint_before_it(
    trained: RunFolder, command: Command, step: int, start: int
) -> None:
    code, out, err = command("replay", trained.path, "--step", step, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["step"], found["start"], found["equal"]) == (step, start, True)
    assert all(one["recorded"] == one["replayed"] for one in found["numbers"].values())


def test_steps_in_between_are_done_again_too_also_across_a_resume(run: RunFolder, command: Command) -> None:
    for step in (3, 4):
        shutil.rmtree(run.checkpoints / f"step-{step:06d}")
    found = json.loads(command("replay", run.path, "--step", 5, "--json")[1])
    assert (found["start"], found["equal"]) == (2, True)


def test_nothing_in_the_folder_changes(run: RunFolder, command: Command) -> None:
    before = content(run)
    assert command("replay", run.path, "--step", 2)[0] == 0
    assert content(run) == before


def test_numbers_that_differ_are_shown_in_a_table_with_exit_code_1(run: RunFolder, command: Command) -> None:
    change_recorded(run, 3, "learner/grad_norm", 1.01)
    code, out, _ = command("replay", run.path, "--step", 3)
    assert code == 1
    loss, norm = (line for line in out.splitlines() if line.startswith(("loss", "grad_norm")))
    assert (loss.split()[-1], norm.split()[-1]) == ("equal", "differs")


def test_only_a_run_that_is_not_deterministic_has_a_tolerance(run: RunFolder, command: Command) -> None:
    change_recorded(run, 3, "learner/grad_norm", 1 + 1e-5)
    assert command("replay", run.path, "--step", 3)[0] == 1
    change_config(run, "trainer", deterministic=False)
    assert command("replay", run.path, "--step", 3)[0] == 0


def test_a_changed_learner_is_found_out(run: RunFolder, command: Command) -> None:
    change_config(run, "learner", mini_batches=1)
    assert command("replay", run.path, "--step", 3)[0] == 1


def test_a_step_that_is_not_there_names_those_that_are(trained: RunFolder, command: Command) -> None:
    code, _, err = command("replay", trained.path, "--step", 9)
    assert code == 1
    assert "has not recorded a train step 9" in err
    assert "choose one of its steps: 1-5" in err


def test_without_the_first_model_only_steps_after_a_checkpoint_can_be_replayed(
    run: RunFolder, command: Command
) -> None:
    change_config(run, "model", path=str(run.path / "gone"))
    code, _, err = command("replay", run.path, "--step", 2)
    assert code == 2
    assert "steps that follow a checkpoint: 3-5" in err
    assert command("replay", run.path, "--step", 3)[0] == 0


def test_steps_are_named_in_spans() -> None:
    assert spans([5, 1, 2, 4, 8]) == "1-2, 4-5, 8"
    assert spans([]) == ""
