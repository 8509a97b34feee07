"""The check of a device that nobody has tried: it passes where all is right, and finds what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from emulated_gpu import DEVICE, Gpu
from typer.testing import CliRunner

from loopwright.cli.app import app
from loopwright.core.packing import micro_batches, pack
from loopwright.learn.products import product_gradients
from loopwright.models.device import SeenGpus
from loopwright.testing.device_check import Checked, DeviceCheck
from loopwright.testing.made_groups import row_of
from loopwright.testing.tiny import tiny_llama

HALF = 0.02
"""How far the logprobs of the tiny model in bfloat16 may be from those in float32 after 20 steps, per token."""

PROGRAM = """
import asyncio, json, sys, torch
from pathlib import Path
from loopwright.models.load import load_model
from loopwright.testing.device_check import half_against_full
torch.set_num_threads(1)
folder = sys.argv[1]
def load(dtype): return load_model(folder, cache=Path(folder), dtype=dtype, native=False)
def apart(dtype, steps): return asyncio.run(half_against_full(load("float32"), load(dtype), steps))
print(json.dumps({"after": apart("bfloat16", 20), "before": apart("bfloat16", 0), "itself": apart("float32", 2)}))
"""


@pytest.fixture
def check(tmp_path: Path, one_thread: None) -> DeviceCheck:
    return DeviceCheck(torch.device(DEVICE), str(tiny_llama(tmp_path)), tmp_path)


async def results(check: DeviceCheck) -> list[Checked]:
    """All checks but those in half precision, which take a CPU without its instructions long."""
    with Gpu():
        return [check._attention(300), await check._step(), await check._engine("float32", 1e-3)]


async def test_a_sound_device_passes(check: DeviceCheck) -> None:
    assert [one.passed for one in await results(check)] == [True, True, True]


async def test_wrong_gradients_are_found(check: DeviceCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*tensors: torch.Tensor, scaling: float, causal: bool, bias: torch.Tensor | None) -> list[torch.Tensor]:
        return product_gradients(*tensors, scaling=1.01 * scaling, causal=causal, bias=bias)

    monkeypatch.setattr("loopwright.learn.kernels.product_gradients", wrong)
    assert [one.passed for one in await results(check)] == [False, False, True]


async def test_an_engine_that_differs_is_found(check: DeviceCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.engines.torch.decode._scores", lambda query, keys, bias, scaling: query @ keys)
    assert [one.passed for one in await results(check)] == [True, True, False]


def test_a_row_has_the_length_that_was_asked_for() -> None:
    for tokens in (1024, 2048, 8192):
        group = row_of(tokens, vocabulary=64)
        chains = [rollout.episode.chains[0] for rollout in group.rollouts if rollout.episode is not None]
        ((row,),) = micro_batches(pack([range(8)], chains), tokens)
        assert row.tokens == tokens


def test_where_there_is_no_gpu_the_doctor_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    result = CliRunner().invoke(app, ["doctor", "--gpu"])
    assert result.exit_code != 0
    assert "--device is cuda" in f"{result.output}{result.exception}"


def test_the_device_is_named_before_it_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(self: DeviceCheck) -> AsyncIterator[Checked]:
        yield Checked("nothing", f"on {self.device}", passed=True)

    monkeypatch.setattr(DeviceCheck, "run", none)
    monkeypatch.setattr("loopwright.models.device.seen_gpus", lambda: SeenGpus("CUDA 13.0", 2, 2))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"GPU {device.index}")
    result = CliRunner().invoke(app, ["doctor", "--gpu", "--device", "cuda:1"])
    assert result.output.splitlines() == [
        f"cuda:1: GPU 1, torch {torch.__version__}",
        "ok     nothing: on cuda:1",
    ]


def test_the_cpu_is_not_compared_with_itself_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.testing.device_check.seen_gpus", lambda: SeenGpus(None, 0, 0))
    monkeypatch.setattr("loopwright.models.device.seen_gpus", lambda: SeenGpus(None, 0, 0))
    result = CliRunner().invoke(app, ["doctor", "--gpu", "--device", "auto"])
    assert "there is no GPU to check: this machine has no GPU" in str(result.exception)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpu", "--json"], "--json would do nothing beside --gpu"),
        (["--gpu", "--cluster", "auto", "--json"], "--json and --cluster would do nothing beside --gpu"),
        (["--model", "smollm2"], "--model would do nothing without --gpu"),
        (["--device", "cuda"], "--device would do nothing without --gpu"),
    ],
)
def test_options_that_do_nothing_are_refused(options: list[str], said: str) -> None:
    assert said in str(CliRunner().invoke(app, ["doctor", *options]).exception)


@pytest.mark.real
def test_half_precision_stays_near_full_precision(tmp_path: Path) -> None:
    """In a child process: a CPU may trap instructions that it advertises, and kill whoever uses them."""
    folder = tiny_llama(tmp_path, initializer_range=0.1)
    capped = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(command, env=capped, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    apart = json.loads(done.stdout)
    assert apart["itself"] == 0
    assert 0 < apart["before"] < HALF / 2
    assert apart["after"] < HALF


@pytest.mark.real
def test_all_checks_pass_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loopwright.cli", "doctor", "--gpu", "--device", "cpu"]
    capped = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    done = subprocess.run(command, env=capped, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    honest, device, *lines = done.stdout.splitlines()
    assert honest == "no GPU is checked: this compares the CPU with itself"
    assert device == f"cpu: the CPU, torch {torch.__version__}"
    assert [line.split()[0] for line in lines] == ["ok"] * 6
