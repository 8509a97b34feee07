"""`loopwright vllm-extension`: where vLLM finds our worker extension."""

from __future__ import annotations

from pathlib import Path

import typer

import loopwright


def vllm_extension() -> None:
    """Print the folder that a vLLM server needs in PYTHONPATH to be trained with (see docs/engines.md)."""
    typer.echo(Path(loopwright.__file__).parent / "engines" / "vllm" / "extension")
