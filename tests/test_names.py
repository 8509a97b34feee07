"""A public class or function has a name of its own: no other room has one of the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src/loopwright"
SHARED = {
    "open_run",  # the two doors for Python programs, and what both open
    "judge",  # the function that a judger's import path names
    "main",  # the entry point of a module that is run by `python -m`
    "problems",  # every file of config/checks has one
    "warnings",  # likewise
}


def test_no_two_rooms_share_a_public_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        # A command has the name that is typed, which is often that of the function behind it.
        if file.parent != PACKAGE / "cli":
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    places[node.name].append(str(file.relative_to(PACKAGE)))
    public = {name: files for name, files in places.items() if not name.startswith("_") and name not in SHARED}
    assert {name: files for name, files in public.items() if len(files) > 1} == {}
