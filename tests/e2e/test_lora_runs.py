"""Runs that train adapters: beside the embedded engine and apart from it, resumed, replayed, read by each command."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from loopwright.build import open_chat, open_run
from loopwright.build.serving import ServedModel, serve_engine
from loopwright.cli import main
from loopwright.config import load
from loopwright.engines.torch.engine import TorchEngine
from loopwright.errors import CheckpointError, ConfigChangedError
from loopwright.models.lean import LeanForward
from loopwright.ports import Reply
from loopwright.runs.run_folder import RunFolder
from loopwright.track.jsonl import read_jsonl

WriteConfig = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]
LORA: dict[str, Any] = {"learner__lora": {"rank": 4, "alpha": 8}, "learner__lr": 3e-2}


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command; gives exit code, stdout and stderr."""

    def run_it(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run_it


async def run(file: Path) -> RunFolder:
    async with open_run(load(file, files=True), cache=file.parent, stop=asyncio.Event(), env=os.environ) as opened:
        await opened.train()
        return opened.folder


def metrics(folder: RunFolder, name: str) -> list[float]:
    return [record[name] for record in read_jsonl(folder.metrics) if name in record]


def adapter_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(checkpoint / "adapter_model.safetensors")
    return tensors


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def check_updates(folder: RunFolder, engine: str = "0") -> None:
    """Every update was proven with adapters that have an effect, and moved little more than the adapters."""
    proofs = metrics(folder, f"engine/{engine}/proof_max")
    assert proofs
    assert all(0 < proof < 5e-4 for proof in proofs)
    bytes_moved = set(metrics(folder, "sync/bytes"))
    size = sum(tensor.nbytes for tensor in adapter_of(sorted(folder.checkpoints.iterdir())[-1]).values())
    assert all(size <= moved < size + 10_000 for moved in bytes_moved)


def check_on_policy(folder: RunFolder) -> None:
    assert all(mismatch < 1e-3 for mismatch in metrics(folder, "learner/mismatch_max"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, write_in: WriteConfig) -> RunFolder:
    """Three deterministic steps in one process, with a checkpoint after each."""
    folder = tmp_path_factory.mktemp("trained")
    changes = {"trainer__deterministic": True, "trainer__checkpoint_every": 1, "trainer__keep_checkpoints": 9}
    return asyncio.run(run(write_in(folder, **LORA, **changes, learner__kl={"coefficient": 0.01})))


def test_beside_the_embedded_engine_it_trains_adapters_and_proves_each_update(trained: RunFolder) -> None:
    check_updates(trained)
    check_on_policy(trained)
    assert len(metrics(trained, "engine/0/proof_max")) == 3
    first, *_, last = (adapter_of(path) for path in sorted(trained.checkpoints.iterdir()))
    assert all(not torch.equal(first[name], last[name]) for name in first)
    assert metrics(trained, "learner/kl")[0] == pytest.approx(0, abs=1e-6), "the reference is what it began with"
    assert metrics(trained, "learner/kl")[-1] > 1e-5
    evaluated = metrics(trained, "eval/eval/sampled/reward")
    assert len(evaluated) == 2


async def test_the_embedded_engine_keeps_its_fast_forward(
    write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    opened = TorchEngine.__init__

    def spied(engine: TorchEngine, loaded: Any, *rest: Any, **options: Any) -> None:
        seen.append(type(loaded.forward))
        opened(engine, loaded, *rest, **options)

    monkeypatch.setattr(TorchEngine, "__init__", spied)
    await run(write_config(**LORA, trainer__steps=1, eval=None))
    assert seen == [LeanForward]


def test_a_resumed_run_goes_on_bit_for_bit(trained: RunFolder, tmp_path: Path, write_in: WriteConfig) -> None:
    changes = {"trainer__deterministic": True, "trainer__checkpoint_every": 1, "trainer__keep_checkpoints": 9}
    options = {**LORA, **changes, "learner__kl": {"coefficient": 0.01}}
    asyncio.run(run(write_in(tmp_path, **options, trainer__steps=2)))
    folder = asyncio.run(run(write_in(tmp_path, **options, trainer__steps=3)))
    last = "step-000003"
    assert equal(adapter_of(folder.checkpoints / last), adapter_of(trained.checkpoints / last))
    moments = [load_file(one.checkpoints / last / "optimizer.safetensors") for one in (folder, trained)]
    assert equal(*moments)


@pytest.mark.real
@pytest.mark.parametrize("trainer", ["colocate", "disaggregated"])
async def test_an_engine_in_a_process_of_its_own_gets_the_adapters_and_merges_them(
    write_config: WriteConfig, trainer: str
) -> None:
    produce = {"kind": "async"} if trainer == "disaggregated" else {"kind": "sync"}
    file = write_config(
        **LORA, trainer__kind=trainer, produce=produce, rollout__engine={"num_engines": 1, "threads": 1}
    )
    folder = await run(file)
    check_updates(folder)
    if trainer == "colocate":
        check_on_policy(folder)


async def test_an_attached_engine_that_served_a_run_of_all_weights_gets_whole_weights(
    write_in: WriteConfig, tiny_model: Path, tmp_path: Path
) -> None:
    served = ServedModel(
        str(tiny_model), tmp_path, "float32", None, threads=1, max_batch=64, cache_tokens=0, device="cpu"
    )
    async with serve_engine(served, host="127.0.0.1", port=0, key=None) as port:
        shared: dict[str, Any] = {
            "rollout__engine": {"kind": "loopwright", "urls": [f"http://127.0.0.1:{port}"]},
            "trainer__kind": "disaggregated",
            "trainer__steps": 2,
            "produce": {"kind": "async", "max_staleness": 0},
            "eval": None,
        }
        for name, learner in (("whole", {}), ("adapters", LORA)):
            (tmp_path / name).mkdir()
            folder = await run(write_in(tmp_path / name, **shared, **learner))
    assert all(proof < 5e-4 for proof in metrics(folder, "engine/0/proof_max"))
    size = sum(tensor.nbytes for tensor in load_file(tiny_model / "model.safetensors").values())
    assert all(moved >= size for moved in metrics(folder, "sync/bytes"))


def copied(run: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(run.path, tmp_path / "run")))


def test_every_command_reads_an_adapter_checkpoint(trained: RunFolder, command: Command, tmp_path: Path) -> None:
    there = copied(trained, tmp_path)
    shutil.rmtree(there.export)
    code, _, err = command("eval", there.path, "--out", tmp_path / "evaluated")
    assert code == 0, err
    again = metrics(RunFolder(tmp_path / "evaluated"), "eval/eval/greedy/reward")
    assert again[-1] == pytest.approx(metrics(trained, "eval/eval/greedy/reward")[-1])
    code, _, err = command("rollout", there.path, "--groups", 1, "--out", tmp_path / "rollouts")
    assert code == 0, err

    async def chat() -> Reply:
        async with open_chat(there, cache=tmp_path) as model:
            return await model.reply([{"role": "user", "content": "What is 2+2?"}], temperature=0, max_new_tokens=4)

    assert asyncio.run(chat()).tokens
    code, said, err = command("replay", there.path, "--step", 2)
    assert code == 0, said + err
    code, said, err = command("replay", there.path, "--step", 1)
    assert code == 0, said + err


def test_an_exported_adapter_loads_in_peft_and_says_what_the_exported_model_says(
    trained: RunFolder, command: Command, tmp_path: Path, tiny_model: Path
) -> None:
    adapter, whole = tmp_path / "adapter", tmp_path / "whole"
    code, said, err = command("export", trained.path, "--adapter", "--out", adapter)
    assert (code, err) == (0, "")
    assert "the adapter of train step 3" in said
    assert not (adapter / "state.json").exists()
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(tiny_model)
    assert command("export", trained.path, "--merged", "--out", whole)[0] == 0
    ids = torch.arange(1, 20)[None]
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        plain = base(ids).logits
        theirs = PeftModel.from_pretrained(base, str(adapter))(ids).logits
        for folder in (whole, trained.export):
            assert torch.allclose(AutoModelForCausalLM.from_pretrained(folder)(ids).logits, theirs, atol=1e-4)
    assert not torch.allclose(plain, theirs, atol=1e-2)


def test_an_exported_adapter_loads_by_its_folder_alone(trained: RunFolder, command: Command, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    checkpoint = sorted(copied(trained, tmp_path).checkpoints.iterdir())[-1] / "adapter_config.json"
    told = json.loads(checkpoint.read_text())
    assert told["task_type"] == "CAUSAL_LM"
    # As older versions have written it.
    checkpoint.write_text(json.dumps(told | {"task_type": None, "auto_mapping": {"base_model_class": "A"}}))
    assert command("export", tmp_path / "run", "--adapter", "--out", adapter)[0] == 0
    ids = torch.arange(1, 20)[None]
    with torch.no_grad():
        theirs = AutoPeftModelForCausalLM.from_pretrained(str(adapter))(ids).logits
        ours = AutoModelForCausalLM.from_pretrained(trained.export)(ids).logits
    assert torch.allclose(theirs, ours, atol=1e-4)


async def test_an_adapter_on_an_adapter_is_exported_whole(
    trained: RunFolder, write_config: WriteConfig, command: Command, tmp_path: Path
) -> None:
    adapter = sorted(trained.checkpoints.iterdir())[-1]
    folder = await run(write_config(**LORA, trainer__steps=1, eval=None, model__path=str(adapter)))
    code, _, err = await asyncio.to_thread(command, "export", folder.path, "--adapter", "--out", tmp_path / "adapter")
    assert code == 1
    assert f"on top of the adapter in {adapter}" in err
    assert "--merged" in err
    assert not (tmp_path / "adapter").exists()
    assert (await asyncio.to_thread(command, "export", folder.path, "--merged", "--out", tmp_path / "whole"))[0] == 0
    whole, run_export = (load_file(one / "model.safetensors") for one in (tmp_path / "whole", folder.export))
    assert equal(whole, run_export)


def test_a_base_that_has_moved_is_named_in_the_checkpoint(
    trained: RunFolder, command: Command, tmp_path: Path, tiny_model: Path
) -> None:
    there = copied(trained, tmp_path)
    config = there.stored_config()
    assert config is not None
    config["model"]["path"] = str(tmp_path / "gone")
    there.adopt(config)
    told = there.checkpoints / "step-000001" / "adapter_config.json"
    base_in(told, tmp_path / "gone")
    code, _, err = command("replay", there.path, "--step", 2)
    assert code == 2
    assert "no checkpoint is that old" not in err
    assert f"as base_model_name_or_path into {told}" in err
    base_in(told, tiny_model)
    code, said, err = command("replay", there.path, "--step", 2)
    assert code == 0, said + err
    code, _, err = command("replay", there.path, "--step", 1)
    assert "no checkpoint is that old" in err


def base_in(file: Path, base: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": str(base)}))


def test_no_command_reads_an_adapter_whose_base_was_replaced(
    trained: RunFolder, command: Command, tmp_path: Path, tiny_model: Path
) -> None:
    there, other = copied(trained, tmp_path), Path(shutil.copytree(tiny_model, tmp_path / "other"))
    shutil.rmtree(there.export)
    weights = load_file(other / "model.safetensors")
    save_file({name: 2 * weight for name, weight in weights.items()}, other / "model.safetensors", {"format": "pt"})
    for checkpoint in there.checkpoints.iterdir():
        base_in(checkpoint / "adapter_config.json", other)
    commands: list[tuple[object, ...]] = [
        ("export", there.path, "--out", tmp_path / "whole"),
        ("eval", there.path, "--out", tmp_path / "evaluated"),
        ("rollout", there.path, "--groups", 1, "--out", tmp_path / "rollouts"),
        ("replay", there.path, "--step", 2),
    ]
    for arguments in commands:
        code, _, err = command(*arguments)
        assert code != 0, arguments
        assert "trained on" in err, arguments
    assert not (tmp_path / "whole").exists()


async def test_a_run_does_not_go_on_beside_another_base(
    write_config: WriteConfig, tmp_path: Path, tiny_model: Path
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    await run(write_config(**LORA, trainer__steps=1, eval=None, model__path=str(model)))
    weights = load_file(model / "model.safetensors")
    save_file({name: 2 * weight for name, weight in weights.items()}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="were trained on another model"):
        await run(write_config(**LORA, trainer__steps=2, eval=None, model__path=str(model)))


async def test_a_full_run_has_no_adapter_to_export(write_config: WriteConfig, tmp_path: Path) -> None:
    folder = await run(write_config(trainer__steps=1, eval=None))
    with pytest.raises(SystemExit) as caught:
        main(["export", str(folder.path), "--adapter", "--out", str(tmp_path / "out")])
    assert caught.value.code
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("began", ["whole", "adapters"])
async def test_a_run_goes_on_with_what_it_began_with(write_config: WriteConfig, began: str) -> None:
    first, second = ({}, LORA) if began == "whole" else (LORA, {})
    await run(write_config(**first, trainer__steps=1, eval=None))
    file = write_config(**second, trainer__steps=2, eval=None)
    with pytest.raises(ConfigChangedError, match=r"learner\.lora"):
        await run(file)
    opening = open_run(load(file), cache=file.parent, stop=asyncio.Event(), allow_config_change=True)
    with pytest.raises(CheckpointError, match=r"learner\.lora"):
        await opening
