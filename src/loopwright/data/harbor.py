"""Tasks from a folder of Harbor's tasks: each subfolder with a task.toml or an instruction.md is one.

All broken tasks are reported at once, with file and line. Nothing of Harbor is imported: the format is read here, and
Harbor checks the rest when a task is run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from loopwright.config.harbor_digest import task_digest
from loopwright.data.records import KNOWN_KEYS, task_from
from loopwright.errors import DataError
from loopwright.types import Task

CONFIG, INSTRUCTION = "task.toml", "instruction.md"
TABLES = ("metadata", "verifier", "agent", "environment", "solution", "task")
SECONDS = (("agent", "timeout_sec"), ("verifier", "timeout_sec"), ("environment", "build_timeout_sec"))
CANARY = re.compile(r"^(<!--.*canary.*-->|#.*canary.*)$", re.IGNORECASE)
NAME = re.compile(r"^[A-Za-z0-9_-][A-Za-z0-9._-]*/[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")
SHOWN_PROBLEMS = 50
READER = 1
"""Raised when the same files are read as another record, so that none of an earlier reader is served."""
LARGEST_NUMBER = 2**63


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with a task, and where."""

    file: str
    line: int
    words: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.words}"


class _FlawError(Exception):
    def __init__(self, file: Path, words: str, line: int = 1) -> None:
        super().__init__(words)
        self.flaw = Flaw(os.fsencode(file).decode("utf-8", "replace"), line, words)


@dataclass(frozen=True, slots=True)
class HarborScan:
    """The records of a folder's tasks, in the order of their names, and the flaws of those that are broken."""

    records: tuple[Mapping[str, Any], ...]
    flaws: tuple[Flaw, ...]


@dataclass(frozen=True, slots=True)
class HarborSource:
    """The tasks of a folder."""

    tasks: tuple[Task, ...]

    @classmethod
    def open(cls, folder: Path, *, skip_broken: bool = False) -> HarborSource:
        records = read_tasks(folder, skip_broken=skip_broken)
        return cls(tuple(task_from(one, default_id=one["id"], where=one["path"]) for one in records))

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> Task:
        return self.tasks[index]


def read_tasks(folder: Path, *, skip_broken: bool = False, cache: Path | None = None) -> tuple[Mapping[str, Any], ...]:
    """The records of all tasks. Raises DataError that names all flaws, unless broken tasks are skipped."""
    found = scan(folder, cache)
    if found.flaws and not skip_broken:
        shown = "\n".join(f"  {flaw}" for flaw in found.flaws[:SHOWN_PROBLEMS])
        raise DataError(
            f"{folder}: {len(found.flaws)} tasks are broken\n{shown}",
            remedy="mend them, or skip them (skip_broken: true, or --skip-broken)",
            file=found.flaws[0].file,
            line=found.flaws[0].line,
        )
    if not found.records:
        remedy = f"name a folder whose subfolders have {CONFIG} and {INSTRUCTION}"
        raise DataError(f"{folder}: there are no tasks of Harbor in it", remedy=remedy, file=str(folder))
    return found.records


def scan(folder: Path, cache: Path | None = None) -> HarborScan:
    """Read all tasks. `cache` is a folder for what was read. Its keys are hashes of everything in a task's folder, so
    an edited task is read anew, also if it has the same name, size and time."""
    records: list[Mapping[str, Any]] = []
    flaws: list[Flaw] = []
    for place in _task_folders(folder):
        try:
            digest = _digest(place)
            records.append({**_known(place, digest, cache), "path": str(place.resolve())})
        except _FlawError as error:
            flaws.append(error.flaw)
    return HarborScan(tuple(records), tuple(flaws))


def _digest(place: Path) -> str:
    try:
        return task_digest(place)
    except OSError as error:
        raise _FlawError(Path(error.filename or place), f"cannot be read: {error.strerror}") from error


def _task_folders(folder: Path) -> list[Path]:
    try:
        places = [place for place in sorted(folder.iterdir()) if place.is_dir() and not place.name.startswith(".")]
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be read: {error.strerror}", remedy="name a folder of tasks", file=str(folder)
        ) from error
    return [place for place in places if any((place / name).exists() for name in (CONFIG, INSTRUCTION))]


def _known(place: Path, digest: str, cache: Path | None) -> dict[str, Any]:
    """The task's record, from the cache if it is there. The name of the folder is not part of its contents."""
    told = f"{READER}\0{place.name}\0{digest}".encode("utf-8", "surrogateescape")
    key = hashlib.blake2b(told, digest_size=16).hexdigest()
    if cache is not None:
        with suppress(OSError, ValueError):
            known: dict[str, Any] = json.loads((cache / f"{key}.json").read_text("utf-8"))
            return known
    record = _record(place, digest)
    if (now := _digest(place)) != digest:
        # It was edited while it was read.
        return _known(place, now, cache)
    if cache is not None:
        # Without a cache, tasks are only read again.
        with suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
            written = cache / f"{key}.{os.getpid()}"
            written.write_text(json.dumps(record), "utf-8")
            written.replace(cache / f"{key}.json")
    return record


def _record(place: Path, digest: str) -> dict[str, Any]:
    try:
        place.name.encode()
    except UnicodeEncodeError as error:
        raise _FlawError(place, "its name is not UTF-8") from error
    config, text = _config(place / CONFIG)
    _check(place / CONFIG, config, text)
    instruction = _instruction(place, config, text)
    if not (place / "environment").is_dir() and not _table(config, "environment").get("docker_image"):
        raise _FlawError(place / "environment", f"is missing, and {CONFIG} names no docker_image")
    has_verifier = any((place / "tests" / f"test.{kind}").is_file() for kind in ("sh", "bat"))
    if not has_verifier and not config.get("steps") and "environment" not in _table(config, "verifier"):
        raise _FlawError(place / "tests" / "test.sh", "is missing, so the task has no verifier")
    try:
        told = {_free(key): _plain(value) for key, value in _table(config, "metadata").items()}
    except RecursionError as error:
        raise _FlawError(place / CONFIG, "metadata is nested too deeply", _line(text, "metadata")) from error
    return {**told, "id": place.name, "prompt": instruction, "instance_id": place.name, "digest": digest, "path": ""}


def _config(file: Path) -> tuple[dict[str, Any], str]:
    text = _text(file)
    try:
        return tomllib.loads(text), text
    except RecursionError as error:
        raise _FlawError(file, "is nested too deeply") from error
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        raise _FlawError(
            file, f"is not valid TOML: {error}", int(line[1]) if line else len(text.splitlines())
        ) from error


def _text(file: Path) -> str:
    if file.exists() and not file.is_file():
        raise _FlawError(file, "is no file")
    try:
        raw = file.read_bytes()
        return raw.decode("utf-8")
    except FileNotFoundError:
        raise _FlawError(file, "is missing") from None
    except OSError as error:
        raise _FlawError(file, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _FlawError(file, "is not UTF-8", raw[: error.start].count(b"\n") + 1) from error


def _check(file: Path, config: Mapping[str, Any], text: str) -> None:
    for name in TABLES:
        if not isinstance(config.get(name, {}), dict):
            raise _FlawError(file, f"{name} must be a table, [{name}]", _line(text, name))
    for table, key in SECONDS:
        value = _table(config, table).get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
            words = f"{table}.{key} must be a number of seconds above 0, and is {value!r}"
            raise _FlawError(file, words, _line(text, key, table))
    if "task" in config:
        name = config["task"].get("name")
        if not isinstance(name, str) or not NAME.match(name) or ".." in name:
            raise _FlawError(file, f"task.name must be like org/name, and is {name!r}", _line(text, "name", "task"))
    steps = config.get("steps", [])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise _FlawError(file, "steps must be a list of tables, [[steps]]", _line(text, "steps"))
    names = [step.get("name") for step in steps]
    for number, name in enumerate(names):
        plain = isinstance(name, str) and name not in ("", ".", "..") and PurePath(name).name == name
        if not plain or name in names[:number]:
            words = f"step {number + 1} must have a name of its own that can be a folder's, and has {name!r}"
            raise _FlawError(file, words, _line(text, "[[steps]]", nth=number))


def _instruction(place: Path, config: Mapping[str, Any], text: str) -> str:
    """What the agent is told; of a task with steps, what it is told first."""
    steps: Sequence[Mapping[str, Any]] = config.get("steps", [])
    files = [place / "steps" / step["name"] / INSTRUCTION for step in steps] or [place / INSTRUCTION]
    told = [(file, _without_canary(_text(file))) for file in files]
    for file, words in told:
        if not words.strip():
            raise _FlawError(file, "is empty, so there is nothing to do")
    return told[0][1]


def _without_canary(text: str) -> str:
    """The text without the marks at its beginning that warn of training on a benchmark, as Harbor shows it."""
    lines = text.split("\n")
    marks = next((number for number, line in enumerate(lines) if not CANARY.match(line.strip())), len(lines))
    start = next((number for number in range(marks, len(lines)) if lines[number].strip()), len(lines))
    return "\n".join(lines[start:])


def _line(text: str, key: str, table: str | None = None, nth: int = 0) -> int:
    """The line that sets a key, or the first one."""
    lines, start = text.splitlines(), 0
    if table is not None:
        header = re.compile(rf"\s*\[\s*{re.escape(table)}\s*\]")
        start = next((number for number, line in enumerate(lines) if header.match(line)), 0)
    pattern = re.compile(rf"\s*({re.escape(key)}\b|\[+{re.escape(key)}\]+|{re.escape(key)}$)")
    found = [number for number in range(start, len(lines)) if pattern.match(lines[number])]
    if not found and table is not None:
        # `agent.timeout_sec = 1`, or `agent = {timeout_sec = 1}`.
        return _line(text, table)
    return found[min(nth, len(found) - 1)] + 1 if found else 1


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table: Mapping[str, Any] = config.get(name, {})
    return table


def _free(key: str) -> str:
    """The key, or another one if it means something to a task."""
    return f"harbor_{key}" if key in KNOWN_KEYS else key


def _plain(value: object) -> object:
    """A value as JSON and every table can hold it: tables become JSON text, dates and numbers without end text."""
    if isinstance(value, bool | str) or (isinstance(value, int | float) and abs(value) < LARGEST_NUMBER):
        return value
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)
