"""Processes of ours are not misled by files that lie where they are started."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from loopwright.core.own_command import own_command

SOURCE = Path(__file__).parents[2] / "src"


def test_a_file_of_the_user_does_not_hide_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "calendar.py").write_text("raise SystemExit('the wrong calendar')")
    subprocess.run(own_command("calendar", "2026"), cwd=tmp_path, check=True, capture_output=True, timeout=60)


def test_every_process_of_ours_is_started_so() -> None:
    starting = re.compile(r"\[sys\.executable, (?!\"-P\")")
    assert [file.name for file in SOURCE.rglob("*.py") if starting.search(file.read_text("utf-8"))] == []
