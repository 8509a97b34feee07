"""Folders of Harbor's tasks: what is read, what is refused, and that an edited task is never served from the cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loopwright.cli.app import app
from loopwright.config import HarborData, ParquetData
from loopwright.data import open_source
from loopwright.data.harbor import HarborSource, read_tasks, scan
from loopwright.data.harbor_table import write_table
from loopwright.errors import DataError

CONFIG = """\
schema_version = "1.4"

[metadata]
difficulty = "easy"
tags = ["a", "b"]

[agent]
timeout_sec = 60.0

[task]
name = "org/one"
"""


def good(folder: Path, text: str = "Do it.\n") -> Path:
    for part in ("environment", "tests"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "task.toml").write_text(CONFIG)
    (folder / "instruction.md").write_text(text)
    (folder / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    return folder


def edit(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(task: Path) -> None:
        text = (task / file).read_text()
        assert old in text
        (task / file).write_text(text.replace(old, new))

    return change


def pipe(file: str) -> Callable[[Path], None]:
    def change(task: Path) -> None:
        (task / file).unlink()
        os.mkfifo(task / file)

    return change


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda task: (task / "task.toml").unlink(), "task.toml:1: is missing"),
    "no instruction": (lambda task: (task / "instruction.md").unlink(), "instruction.md:1: is missing"),
    "bad TOML": (edit("task.toml", "difficulty =", "difficulty"), "task.toml:4: is not valid TOML"),
    "config in Latin-1": (lambda task: (task / "task.toml").write_bytes(b"\n[metadata]\nx = '\xe9'\n"), "task.toml:3:"),
    "empty instruction": (lambda task: (task / "instruction.md").write_text(" \n"), "instruction.md:1: is empty"),
    "instruction in Latin-1": (lambda task: (task / "instruction.md").write_bytes(b"a\n\xe9\n"), "instruction.md:2:"),
    "no verifier": (lambda task: (task / "tests" / "test.sh").unlink(), "tests/test.sh:1: is missing"),
    "no table": (lambda task: (task / "task.toml").write_text("agent = 3\n"), "task.toml:1: agent must be a table"),
    "bad time": (edit("task.toml", "60.0", "-1"), "task.toml:8: agent.timeout_sec must be"),
    "time as text": (edit("task.toml", "60.0", "'long'"), "task.toml:8: agent.timeout_sec must be"),
    "bad name": (edit("task.toml", "org/one", "one"), "task.toml:11: task.name must be like"),
    "no environment": (lambda task: (task / "environment").rmdir(), "environment:1: is missing"),
    "step without a name": (edit("task.toml", "[task]", "[[steps]]\n[task]"), "task.toml:10: step 1 must have a name"),
    "too deep": (
        lambda task: (task / "task.toml").write_text(f"x = {'[' * 6000}{']' * 6000}"),
        "task.toml:1: is nested too deeply",
    ),
    "time in a line": (
        lambda task: (task / "task.toml").write_text("\nagent = {timeout_sec = 0}\n"),
        "task.toml:2: agent.timeout_sec must be",
    ),
    "instruction that is no file": (
        pipe("instruction.md"),
        "instruction.md:1: is no file",
    ),
    "step without instruction": (
        edit("task.toml", "[task]", "[[steps]]\nname = 's'\n[task]"),
        "steps/s/instruction.md:1: is missing",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_task_is_reported_with_file_and_line(tmp_path: Path, kind: str) -> None:
    spoil, words = BROKEN[kind]
    spoil(good(tmp_path / "one"))
    good(tmp_path / "two")
    with pytest.raises(DataError, match="1 tasks are broken") as caught:
        HarborSource.open(tmp_path)
    assert f"{tmp_path / 'one'}/{words}" in caught.value.message
    assert [task.id for task in HarborSource.open(tmp_path, skip_broken=True).tasks] == ["two"]


def test_all_broken_tasks_are_reported_at_once(tmp_path: Path) -> None:
    for number, (spoil, _) in enumerate(BROKEN.values()):
        spoil(good(tmp_path / f"task-{number:02}"))
    with pytest.raises(DataError, match=f"{len(BROKEN)} tasks are broken") as caught:
        read_tasks(tmp_path)
    for number, (_, words) in enumerate(BROKEN.values()):
        assert f"task-{number:02}/{words}" in caught.value.message


def test_a_folder_whose_name_is_no_text_is_reported_too(tmp_path: Path) -> None:
    os.rename(good(tmp_path / "one"), os.fsencode(tmp_path) + b"/\xff")
    (flaw,) = scan(tmp_path, tmp_path / "cache").flaws
    assert "its name is not UTF-8" in str(flaw)
    str(flaw).encode()


def test_metadata_that_no_table_can_hold_becomes_text(tmp_path: Path) -> None:
    odd = f"big = {2**70}\nnever = inf\nday = 2026-01-01\n"
    edit("task.toml", "tags =", f"{odd}tags =")(good(tmp_path / "tasks" / "one"))
    records = read_tasks(tmp_path / "tasks")
    assert (records[0]["big"], records[0]["never"], records[0]["day"]) == (str(2**70), "inf", "2026-01-01")
    write_table(records, tmp_path / "tasks.parquet")
    source = open_source(ParquetData(path="tasks.parquet"), tmp_path)
    assert source[0] == HarborSource.open(tmp_path / "tasks")[0]


def test_a_task_has_its_instruction_path_and_metadata(tmp_path: Path) -> None:
    good(tmp_path / "b", "<!-- canary GUID 1 -->\n\nSay b.\n")
    good(tmp_path / "a")
    (tmp_path / "notes").mkdir()
    source = open_source(HarborData(path="."), tmp_path)
    assert [source[number].id for number in range(len(source))] == ["a", "b"]
    task = source[1]
    assert task.messages == ({"role": "user", "content": "Say b.\n"},)
    assert task.metadata["instance_id"] == "b"
    assert task.metadata["path"] == str(tmp_path / "b")
    assert (task.metadata["difficulty"], task.metadata["tags"]) == ("easy", ["a", "b"])


@pytest.mark.parametrize("file", ["instruction.md", "tests/test.sh", "task.toml"])
def test_an_edited_task_is_never_served_from_the_cache(tmp_path: Path, file: str) -> None:
    cache, task = tmp_path / "cache", good(tmp_path / "tasks" / "one")
    (before,) = scan(tmp_path / "tasks", cache).records
    assert scan(tmp_path / "tasks", cache).records == (before,)
    assert len(list(cache.iterdir())) == 1
    status = (task / file).stat()
    # The same name, size and time.
    old, new = {"task.toml": ("easy", "hard"), "instruction.md": ("Do", "Be")}.get(file, ("echo 1", "echo 0"))
    edit(file, old, new)(task)
    os.utime(task / file, ns=(status.st_atime_ns, status.st_mtime_ns))
    found = scan(tmp_path / "tasks", cache)
    assert [one["digest"] for one in found.records] != [before["digest"]]
    assert (task / file).stat().st_size == status.st_size


@pytest.mark.parametrize("linked", ["instruction.md", "tests", "steps/s"])
def test_an_edit_behind_a_link_is_noticed(tmp_path: Path, linked: str) -> None:
    cache, task = tmp_path / "cache", good(tmp_path / "tasks" / "one")
    if linked == "steps/s":
        edit("task.toml", "[task]", "[[steps]]\nname = 's'\n[task]")(task)
        (task / "steps" / "s").mkdir(parents=True)
        (task / "steps" / "s" / "instruction.md").write_text("Do it.\n")
    elsewhere = (task / linked).rename(tmp_path / "shared")
    (task / linked).symlink_to(elsewhere)
    (before,) = scan(tmp_path / "tasks", cache).records
    edited = {"tests": "shared/test.sh", "steps/s": "shared/instruction.md"}.get(linked, "shared")
    edit(edited, "1" if linked == "tests" else "Do", "0" if linked == "tests" else "Be")(tmp_path)
    (after,) = scan(tmp_path / "tasks", cache).records
    assert after["digest"] != before["digest"]
    assert (after["prompt"] == before["prompt"]) is (linked == "tests")


def test_links_that_lead_in_a_circle_or_nowhere_do_no_harm(tmp_path: Path) -> None:
    task = good(tmp_path / "tasks" / "one")
    (task / "up").symlink_to("..")
    (task / "tests" / "again").symlink_to(task)
    (task / "tests" / "nothing").symlink_to("nowhere")
    (task / "environment" / "etc").symlink_to("/etc")
    (record,) = scan(tmp_path / "tasks").records
    good(tmp_path / "tasks" / "two")
    assert scan(tmp_path / "tasks").records[0] == record


def test_the_cache_is_used(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    good(tmp_path / "tasks" / "one")
    scan(tmp_path / "tasks", cache)
    (kept,) = cache.iterdir()
    kept.write_text(kept.read_text().replace("Do it.", "From the cache."))
    (record,) = scan(tmp_path / "tasks", cache).records
    assert record["prompt"] == "From the cache.\n"


def test_the_command_writes_a_file_that_a_run_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    good(tmp_path / "tasks" / "one")
    BROKEN["no config"][0](good(tmp_path / "tasks" / "two"))
    words = ["data", "harbor", str(tmp_path / "tasks"), "-o", str(tmp_path / "tasks.parquet")]
    assert CliRunner().invoke(app, words).exit_code != 0
    assert not (tmp_path / "tasks.parquet").exists()
    done = CliRunner().invoke(app, [*words, "--skip-broken"])
    assert done.exit_code == 0
    assert "two/task.toml:1: is missing" in done.output
    assert "1 tasks" in done.output
    source = open_source(ParquetData(path="tasks.parquet"), tmp_path)
    assert source[0] == HarborSource.open(tmp_path / "tasks", skip_broken=True)[0]


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no tasks"):
        HarborSource.open(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        HarborSource.open(tmp_path / "none")
