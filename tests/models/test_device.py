"""Which device is chosen, and what is said where that is not possible."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from loopwright.errors import ConfigError
from loopwright.models.device import SeenGpus, chosen_device
from loopwright.models.gpus import UNKNOWN, machine_gpus
from loopwright.models.memory import is_device_broken, is_out_of_memory, memory_of

NONE = SeenGpus(build=None, usable=0, in_machine=0)
CPU_BUILD = SeenGpus(build=None, usable=0, in_machine=1)
OLD_DRIVER = SeenGpus(build="CUDA 13.0", usable=0, in_machine=1)
TWO = SeenGpus(build="CUDA 13.0", usable=2, in_machine=2)


@pytest.mark.parametrize(
    ("wanted", "seen", "device"),
    [
        ("auto", NONE, "cpu"),
        ("cpu", TWO, "cpu"),
        ("auto", TWO, "cuda:0"),
        ("cuda", TWO, "cuda:0"),
        ("cuda:1", TWO, "cuda:1"),
    ],
)
def test_the_device_that_is_meant(wanted: str, seen: SeenGpus, device: str) -> None:
    assert chosen_device(wanted, seen=seen) == torch.device(device)


def test_a_run_that_must_repeat_takes_the_cpu() -> None:
    assert chosen_device("auto", repeatable=True, seen=TWO) == torch.device("cpu")


@pytest.mark.parametrize(
    ("wanted", "seen", "problem", "remedy"),
    [
        ("cuda", NONE, "model.device is cuda: this machine has no GPU", "set it to cpu"),
        ("cuda:2", TWO, "model.device is cuda:2, and torch can use cuda:0, cuda:1", "CUDA_VISIBLE_DEVICES"),
        (
            "cuda",
            CPU_BUILD,
            "is built for CPUs only, and this machine has a GPU",
            "pip install --force-reinstall torch",
        ),
        ("cuda", OLD_DRIVER, "this machine has a GPU, and torch, built for CUDA 13.0, cannot use it", "nvidia-smi"),
        ("tpu", TWO, "model.device is tpu", "cuda:N"),
    ],
)
def test_a_device_that_cannot_be_had_is_refused(wanted: str, seen: SeenGpus, problem: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        chosen_device(wanted, seen=seen)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("seen", [CPU_BUILD, OLD_DRIVER])
def test_auto_says_why_a_gpu_is_not_used(seen: SeenGpus, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "loopwright"):
        assert chosen_device("auto", seen=seen) == torch.device("cpu")
    assert "the model is computed on the CPU" in caplog.text
    assert seen.remedy in caplog.text


def test_auto_without_a_gpu_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "loopwright"):
        chosen_device("auto", seen=NONE)
    assert not caplog.text


def test_the_gpus_of_a_machine_are_counted_without_torch(tmp_path: Path) -> None:
    assert machine_gpus(tmp_path) == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert machine_gpus(tmp_path) == 2
    (tmp_path / "kfd").touch()
    assert machine_gpus(tmp_path) == UNKNOWN


def test_errors_that_say_that_memory_ran_out() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, device="cpu")
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("unable to mmap 57033728 bytes from file <x>: Cannot allocate memory (12)"))
    for words in (
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "ncclUnhandledCudaError: Call to CUDA function failed. Cuda failure 2 'out of memory'",
    ):
        assert is_out_of_memory(torch.distributed.DistBackendError(words))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory"))
    assert "GiB free now" in memory_of(torch.device("cpu"))


def test_errors_that_say_that_the_device_is_broken() -> None:
    illegal = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    assert is_device_broken(illegal)
    assert not is_out_of_memory(illegal)
    assert not is_device_broken(torch.AcceleratorError("CUDA error: out of memory"))
    assert not is_device_broken(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
