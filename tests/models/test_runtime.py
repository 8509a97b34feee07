"""What `configure` does to a process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from loopwright.models.runtime import configure
configure(threads=1, deterministic=False)
def step():
    tensors = [torch.zeros(size) for size in (500_000, 2_000_000, 4_000_000) for _ in range(4)]
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.real
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="sets options of glibc")
def test_the_memory_of_a_step_is_used_again_by_the_next() -> None:
    """Each step fills 25,000 pages. Left alone, glibc mostly gives them back in between: 234,000 faults."""
    command = [sys.executable, "-c", FAULTS]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert int(told) < 1_000


def test_float32_is_float32_where_the_environment_wants_tf32() -> None:
    """Containers for GPUs set this variable."""
    script = "import torch; from loopwright.models.runtime import configure; configure(threads=1, deterministic=False)"
    command = [sys.executable, "-c", f"{script}; print(torch.get_float32_matmul_precision())"]
    env = os.environ | {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=env).stdout
    assert told.strip() == "highest"
