"""OpenMP's threads sleep soon when there is nothing to do, unless the user chose otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from loopwright.core.environment import child_environment
from loopwright.models.openmp import SPINS, wait_without_spinning

# libgomp prints its settings as it is loaded, if it is told to.
PROGRAM = """
from loopwright.cli import main
try:
    main(["--help"])
except SystemExit:
    import torch
"""


@pytest.mark.parametrize("chosen", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_what_the_user_chose_stays(chosen: dict[str, str]) -> None:
    env = dict(chosen)
    wait_without_spinning(env)
    assert env == chosen


def test_child_processes_inherit_it() -> None:
    env: dict[str, str] = {}
    wait_without_spinning(env)
    assert child_environment(env) == {"GOMP_SPINCOUNT": str(SPINS)}


@pytest.mark.real
def test_the_libgomp_that_torch_loads_has_read_it() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**env, "OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert f"GOMP_SPINCOUNT = '{SPINS}'" in done.stderr
