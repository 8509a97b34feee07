"""What a release says of itself: its version, its notes, the Python that it needs, and that CI runs what we run."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

import loopwright

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_the_version_is_the_same_everywhere_and_has_release_notes() -> None:
    assert PROJECT["version"] == loopwright.__version__
    assert f"\n## {loopwright.__version__}\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_readme_names_the_oldest_python() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert f"It runs on Linux with Python {oldest} or later." in (ROOT / "README.md").read_text("utf-8")


def test_the_workflow_and_the_hooks_run_what_we_run() -> None:
    """`make check` is lint, types, layers and fast tests; the hooks run its tools, and itself before a push."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text("utf-8"))
    runs = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in workflow["jobs"].items()}
    assert runs == {"check": ["make check"], "test": ["make test"]}
    makefile = (ROOT / "Makefile").read_text("utf-8")
    lint = makefile.partition("\nlint:")[2].partition("\n\n")[0]
    tools = [line.strip().removeprefix("$(BIN)/").removesuffix(" .") for line in lint.splitlines()[1:]]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"]
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in hooks[0]["hooks"]]
    assert entries == [*tools, "make check"]
