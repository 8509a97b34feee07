"""`loopwright vllm-extension` prints a folder from which vLLM can load our extension, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from loopwright.cli.app import app
from loopwright.engines.vllm.engine import EXTENSION


def test_the_printed_folder_holds_the_class_that_servers_are_started_with() -> None:
    folder = Path(CliRunner().invoke(app, ["vllm-extension"]).stdout.strip())
    module, _, name = EXTENSION.partition(".")
    assert [file.name for file in folder.iterdir() if file.suffix == ".py"] == [f"{module}.py"]
    look = f"import sys; sys.path.insert(0, {str(folder)!r}); import {module}; print({module}.{name}.__name__)"
    look += "; assert not any(one.startswith('loopwright.') for one in sys.modules)"
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout.strip() == name
