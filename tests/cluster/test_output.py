"""The output of actors reaches their logs in whole lines, so that secrets in it are seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.cluster.logs import ActorLogs
from loopwright.cluster.output import LAST_BYTES, OUTPUT_BYTES, OutputFiles
from loopwright.core.redaction import Redactor

SECRET = "a-secret-of-the-config"


@pytest.mark.parametrize("line", [80, OUTPUT_BYTES * 3])
@pytest.mark.parametrize("before", [1, 6, len(SECRET) - 1])
def test_a_secret_at_the_end_of_what_is_read_at_a_time_is_removed(tmp_path: Path, line: int, before: int) -> None:
    """`before`: how much of the secret is in the first piece."""
    text = ("." * (line - 1) + "\n") * (OUTPUT_BYTES // line) if line < OUTPUT_BYTES else ""
    text += "." * (OUTPUT_BYTES - len(text) - before) + SECRET + "\nthe end\n"
    (tmp_path / "out").write_text(text)
    files, logs = OutputFiles([str(tmp_path / "out")]), ActorLogs()
    logs.write_to(tmp_path / "logs", Redactor((SECRET,)))
    for _ in range(3):
        logs.write("actor", files.new())
    log = (tmp_path / "logs" / "actor.log").read_text()
    assert SECRET not in log
    assert log.endswith("\nthe end\n")
    assert log.count(".") == text.count(".")


def test_a_line_without_an_end_is_read_in_pieces_at_last(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"x" * (LAST_BYTES + 5))
    files = OutputFiles([str(tmp_path / "out")])
    assert files.new() == b"x" * LAST_BYTES
    assert files.new() == b""
