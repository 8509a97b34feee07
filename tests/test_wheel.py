"""The package as a user gets it: a wheel, installed into an environment of its own, without any extra."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import loopwright

ROOT = Path(__file__).parents[1]

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools writes beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    tracked = run("git", "ls-files", "src", "pyproject.toml", "README.md", "LICENSE", cwd=ROOT).splitlines()
    for name in tracked:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source), cwd=folder)
    (built,) = folder.glob("loopwright-*.whl")
    return built


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_all_that_is_no_python(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    kinds = {".c", ".html", ".css", ".js", ".svg", ".md", ".LICENSE"}
    wanted = [path for path in (ROOT / "src").rglob("*") if path.suffix in kinds or path.name == "py.typed"]
    assert any(path.name == "uPlot.LICENSE" for path in wanted)
    assert wanted
    assert {path.relative_to(ROOT / "src").as_posix() for path in wanted} <= names
    # It is Python, in a folder that is no package: vLLM's environment imports it from there.
    assert "loopwright/engines/vllm/extension/loopwright_vllm.py" in names
    assert not any("tests" in name.split("/") for name in names)


def test_the_wheel_works_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python, command = str(tmp_path / "venv/bin/python"), str(tmp_path / "venv/bin/loopwright")
    run(python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel), cwd=tmp_path)
    assert run(python, "-c", "import loopwright; print(loopwright.__version__)", cwd=tmp_path).strip() == (
        loopwright.__version__
    )
    assert "train" in run(command, "--help", cwd=tmp_path)
    (tmp_path / "problems.jsonl").write_text('{"prompt": "2+3?", "truth": 5}\n')
    (tmp_path / "train.yaml").write_text(
        "model: { path: smollm2 }\n"
        "data: { kind: jsonl, path: problems.jsonl }\n"
        "agent: { kind: single_turn, judger: integer_answer }\n"
        "trainer: { run_dir: runs/mine, steps: 1 }\n"
    )
    run(command, "config", "train.yaml", cwd=tmp_path)
    said = subprocess.run(
        [command, "train", "train.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert said.returncode != 0
    assert "loopwright[torch]" in said.stderr
