"""What `configure` does to a process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from loopwright.models.runtime import configure
if sys.argv[1] == "configured":
    configure(threads=1, deterministic=False)
def step():
    tensors = [torch.zeros(2_000_000) for _ in range(6)]
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", FAULTS, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="sets options of glibc")
def test_the_memory_of_a_step_is_used_again_by_the_next() -> None:
    assert faults("configured") < faults("left alone") / 10
