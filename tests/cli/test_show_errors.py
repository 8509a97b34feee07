"""How errors look on a terminal."""

from __future__ import annotations

import pytest

from loopwright.cli.show_errors import show_error
from loopwright.errors import RunError


def test_an_error_is_told_with_its_notes_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    error = RunError("the database is full", remedy="free some disk space")
    error.add_note("besides, the checkpoint of step 2 could not be written")
    show_error(error)
    assert capsys.readouterr().err.splitlines() == [
        "error: the database is full",
        "  besides, the checkpoint of step 2 could not be written",
        "  -> free some disk space",
    ]
