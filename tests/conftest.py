"""Fixtures that several rooms share."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_run import make_run

from loopwright.trainers.run_folder import RunFolder


@pytest.fixture
def made_up_run(tmp_path: Path) -> RunFolder:
    """A finished run without a model: three train steps, and evaluations before and after them."""
    return make_run(tmp_path / "runs" / "adding")
