"""Fixtures that several rooms share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings
from made_up_run import make_run

from loopwright.runs.run_folder import RunFolder
from loopwright.testing.tiny import tiny_llama, tiny_qwen3

# Tests talk to this machine only, also when they ask for a model that it does not have.
os.environ["HF_HUB_OFFLINE"] = "1"

# Who is started in the background by a shell ignores Ctrl-C, and the commands that tests interrupt would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow machine is not a failure, and the same commit gives the same examples everywhere.
settings.register_profile("loopwright", deadline=None, derandomize=True)
settings.load_profile("loopwright")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, because many tests wait; few, because each spends seconds on imports first."""
    return min(4, (os.cpu_count() or 1) + 1)


SPREAD = 0.4
"""Initial weights this wide give logits that differ clearly, so that rounding never decides which token is next."""


@pytest.fixture
def made_up_run(tmp_path: Path) -> RunFolder:
    """A finished run without a model: three train steps, and evaluations before and after them."""
    return make_run(tmp_path / "runs" / "adding")


@pytest.fixture(scope="session")
def one_thread() -> None:
    """Tiny matrices are computed faster without a pool of threads, above all beside other tests."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_llama_folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"), initializer_range=SPREAD)


@pytest.fixture(scope="session")
def tiny_sliding_folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A Qwen3 in which layers that see 8 tokens back alternate with layers that see all."""
    return tiny_qwen3(
        tmp_path_factory.mktemp("sliding"),
        initializer_range=SPREAD,
        num_hidden_layers=4,
        use_sliding_window=True,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
