"""`loopwright export`: the model of a checkpoint as a folder, whole or not there, also beside a live run."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import loopwright.build.export
from loopwright.build import export_model, open_run
from loopwright.cli import main
from loopwright.config import load
from loopwright.errors import ModelError, RunError
from loopwright.learn.exporting import write_model
from loopwright.models.tokenizer import load_tokenizer
from loopwright.runs.run_folder import RunFolder

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


def trained_in(folder: Path, write_in: WriteConfig, **changes: object) -> RunFolder:
    file = write_in(folder, eval=None, trainer__checkpoint_every=1, trainer__keep_checkpoints=2, **changes)

    async def train() -> RunFolder:
        async with open_run(load(file), cache=folder, stop=asyncio.Event()) as run:
            await run.train()
            return run.folder

    return asyncio.run(train())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, write_in: WriteConfig) -> RunFolder:
    """Three steps. There are checkpoints of the last two, and an export."""
    return trained_in(tmp_path_factory.mktemp("trained"), write_in)


@pytest.fixture
def run(trained: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of that run, which a test may damage."""
    return RunFolder(Path(shutil.copytree(trained.path, tmp_path / "run")))


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return weights


def equal(one: Path, other: Path) -> bool:
    a, b = weights_in(one), weights_in(other)
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and a[name].equal(b[name]) for name in a)


def test_the_latest_step_is_exported_as_the_run_itself_does(trained, command, tmp_path):
    out = tmp_path / "models" / "sums"
    code, said, err = command("export", trained.path, "--out", out)
    assert (code, err) == (0, "")
    assert "train step 3" in said
    assert equal(out, trained.export)
    assert sorted(entry.name for entry in out.iterdir()) == sorted(entry.name for entry in trained.export.iterdir())
    assert not (out / "state.json").exists()
    assert load_tokenizer(str(out))("12+7")["input_ids"] == load_tokenizer(str(trained.export))("12+7")["input_ids"]


def test_a_step_of_the_past_can_be_exported_and_loads_in_transformers(trained, command, tmp_path):
    code, said, _ = command("export", trained.path, "--step", 2, "--out", tmp_path / "second")
    assert (code, "train step 2" in said) == (0, True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "second")
    saved = weights_in(trained.checkpoints / "step-000002")
    assert all(parameter.equal(saved[name]) for name, parameter in model.named_parameters())
    assert not equal(tmp_path / "second", trained.export)


def test_half_precision_is_exported_with_the_numbers_that_the_model_computes_with(write_in, tmp_path):
    run = trained_in(tmp_path, write_in, model__dtype="bfloat16", trainer__steps=1)
    export_model(run, tmp_path / "half")
    assert equal(tmp_path / "half", run.export)
    assert weights_in(tmp_path / "half")["model.norm.weight"].dtype == torch.bfloat16
    assert weights_in(run.checkpoints / "step-000001")["model.norm.weight"].dtype == torch.float32


def test_a_step_without_a_checkpoint_names_those_that_have_one(trained, command, tmp_path):
    code, _, err = command("export", trained.path, "--step", 1, "--out", tmp_path / "first")
    assert code == 1
    assert "has no checkpoint of step 1" in err
    assert "2, 3" in err
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_checkpoint_says_so(made_up_run, command, tmp_path):
    code, _, err = command("export", made_up_run.path, "--out", tmp_path / "none")
    assert (code, "has no weights yet" in err) == (1, True)


def test_nothing_that_exists_is_overwritten(trained, tmp_path):
    full, file, empty = tmp_path / "full", tmp_path / "file", tmp_path / "empty"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    file.write_text("mine")
    empty.mkdir()
    for taken in (full, file):
        with pytest.raises(RunError, match=r"is not empty|is a file"):
            export_model(trained, taken)
    assert [entry.name for entry in full.iterdir()] == ["mine.txt"]
    export_model(trained, empty)
    assert equal(empty, trained.export)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError("No space left on device"), ModelError("no", remedy="")]
)
def test_an_export_that_was_not_finished_leaves_nothing(trained, tmp_path, monkeypatch, error):
    def interrupted(source: Path, draft: Path, dtype: str) -> None:
        write_model(source, draft, dtype)
        raise error

    monkeypatch.setattr(loopwright.build.export, "write_model", interrupted)
    with pytest.raises((KeyboardInterrupt, RunError, ModelError)):
        export_model(trained, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("noticed", [True, False])
def test_a_live_run_may_remove_the_checkpoint_that_is_read(run, tmp_path, monkeypatch, noticed):
    """The latest checkpoint at the beginning is no longer there at the end: the one after it is exported instead."""
    newer = Path(shutil.copytree(run.checkpoints / "step-000003", tmp_path / "step-000004"))
    state = newer / "state.json"
    state.write_text(state.read_text().replace('"step": 3', '"step": 4'))
    sources = []

    def beside_a_run(source: Path, draft: Path, dtype: str) -> None:
        sources.append(source.name)
        if len(sources) == 1:
            source.rename(source.with_name(f".unfinished-{source.name}"))
            newer.rename(run.checkpoints / newer.name)
            if noticed:
                raise ModelError("cannot load the weights", remedy="")
            source = run.checkpoints / "step-000002"
        write_model(source, draft, dtype)

    monkeypatch.setattr(loopwright.build.export, "write_model", beside_a_run)
    with RunFolder.open(run.path, run.stored_config() or {}):
        assert export_model(run, tmp_path / "out").step == 4
    assert sources == ["step-000003", "step-000004"]
    assert equal(tmp_path / "out", run.export)


def test_a_checkpoint_with_a_gap_is_not_exported(run, tmp_path):
    from safetensors.torch import save_file

    file = run.checkpoints / "step-000003" / "model.safetensors"
    save_file({name: weight for name, weight in load_file(file).items() if name != "model.norm.weight"}, file)
    with pytest.raises(RunError, match=r"lacks 1 weights .*'model.norm.weight'"):
        export_model(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
