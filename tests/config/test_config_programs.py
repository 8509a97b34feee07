"""Examples and documented configs of programs load, and mistakes in them are found before anything starts."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from loopwright.config import Loaded, load
from loopwright.errors import ConfigError

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "programs").glob("*/*.yaml"))
PAGES = ("README.md", "docs/programs.md")


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, with programs that do nothing."""
    folder = tmp_path / "bin"
    for name in ("mini", "claude", "codex", "bwrap"):
        executable(folder / name)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o755)
    return path


def test_there_is_an_example_of_each_program_with_a_readme() -> None:
    assert [file.stem for file in EXAMPLES] == ["claude_code", "codex", "langgraph", "mini_swe_agent"]
    for file in EXAMPLES:
        readme = (file.parent / "README.md").read_text("utf-8")
        assert f"loopwright train examples/programs/{file.stem}/{file.name}" in readme


@pytest.mark.parametrize("file", [*EXAMPLES, ROOT / "examples" / "agent_program.yaml"], ids=lambda file: file.stem)
def test_an_example_loads_and_its_files_are_there(file: Path) -> None:
    loaded = load(file, files=True)
    assert loaded.warnings == ()
    assert [one.agent.kind for one in loaded.config.task_sets] == ["remote"]


@pytest.mark.parametrize("page", PAGES)
def test_the_ten_lines_of_the_docs_load(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text("utf-8")
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: remote" in block]
    assert "run_dir" in blocks[0], "the first is a whole config"
    assert len([line for line in blocks[0].splitlines() if line and not line.startswith("#")]) <= 10
    (tmp_path / "problems.jsonl").write_text('{"prompt": "What is 1+1?", "truth": 2}\n')
    for block in blocks:
        whole = yaml.safe_load(blocks[0]) | yaml.safe_load(block)
        assert loaded_text(yaml.safe_dump(whole), tmp_path).config.task_sets[0].agent.kind == "remote"


def loaded_text(text: str, folder: Path) -> Loaded:
    (folder / "train.yaml").write_text(text)
    return load(folder / "train.yaml", files=True)


def config(command: str) -> str:
    return f"""
model: {{path: smollm2}}
data: {{kind: jsonl, path: problems.jsonl}}
agent: {{kind: remote, runner: {{kind: command, command: [{command}]}}, reward: {{kind: exit_code}}}}
trainer: {{run_dir: runs/x, steps: 1}}
"""


def test_a_program_is_looked_for_where_it_will_be_started_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "problems.jsonl").write_text('{"prompt": "What is 1+1?", "truth": 2}\n')
    assert Path(sys.executable).name.startswith("python")
    loaded_text(config("python"), tmp_path)
    executable(tmp_path / "tools" / "agent")
    loaded_text(config("./tools/agent"), tmp_path)
    for command in ("agent", "./agent", str(tmp_path / "agent")):
        with pytest.raises(ConfigError, match="no program"):
            loaded_text(config(command), tmp_path)
    executable(tmp_path / "elsewhere" / "agent")
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="no program"):
        loaded_text(config("./agent"), tmp_path)


def test_a_folder_that_is_made_readable_must_exist_and_have_an_effect(tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_text('{"prompt": "What is 1+1?", "truth": 2}\n')
    text = config("python").replace("command: [python]", "command: [python], isolate: bwrap, readable: [data]")
    with pytest.raises(ConfigError, match="readable"):
        loaded_text(text, tmp_path)
    (tmp_path / "data").mkdir()
    assert loaded_text(text, tmp_path).warnings == ()
    (warning,) = loaded_text(text.replace("isolate: bwrap", "isolate: none"), tmp_path).warnings
    assert "readable" in str(warning)
