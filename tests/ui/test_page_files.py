"""The files of the page: they come from here, and hold nothing that the policy forbids."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from loopwright.ui.app import STATIC

OWN = sorted(path for path in STATIC.rglob("*") if path.is_file() and "vendor" not in path.parts)
SCRIPTS = [path for path in OWN if path.suffix == ".js"]


def test_the_chart_library_is_the_one_that_was_published() -> None:
    listed = re.findall(r"^ +([0-9a-f]{64})  (\S+)$", (STATIC / "vendor" / "VERSIONS.md").read_text(), re.MULTILINE)
    files = {path.name for path in (STATIC / "vendor").iterdir()} - {"VERSIONS.md"}
    assert {name for _, name in listed} == files
    for digest, name in listed:
        assert sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_reads_text_as_markup(path: Path) -> None:
    text = path.read_text()
    ways = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "eval(",
        "Function(",
        "srcdoc",
    )
    assert not [way for way in ways if way in text]


def test_the_shell_has_nothing_inline_and_nothing_from_elsewhere() -> None:
    shell = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", shell)
    for path in OWN:
        found = re.findall(r"https?://[^\s\"')]+", path.read_text())
        assert set(found) <= {"http://www.w3.org/2000/svg"}, path
