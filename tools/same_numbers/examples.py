"""Which examples can be compared bit by bit, and one small step of each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from loopwright.config import load
from loopwright.errors import BenchError, ConfigError
from loopwright.runs.run_folder import RunFolder
from tools.compare.trees import Tree
from tools.same_numbers.numbers import Numbers, read_numbers

THREADS = 2
SECONDS = 600.0

DETERMINISTIC = "trainer.deterministic=true"
# A filter draws until a group teaches something, which an untrained model may not do for a long time.
SMALL = (
    f"model.threads={THREADS}",
    "rollout.samples_per_task=8",
    "rollout.max_new_tokens=32",
    "produce.filter=none",
    "trainer.steps=1",
    "trainer.groups_per_step=6",
    "trainer.export=false",
    "eval=null",
    "track.report=false",
    "track.console=false",
)
"""The same for both trees."""


def examples(folder: Path, names: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each example config by its name, with why it cannot be run deterministically, or nothing if it can."""
    files = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
    if unknown := [name for name in names if name not in files]:
        raise BenchError(f"there is no example {unknown[0]}", remedy=f"choose among {', '.join(files)}")
    for name in names or files:
        # Without the mode it must be sound: a mistake in an example is no reason to leave it out.
        load(files[name], SMALL)
        try:
            load(files[name], (*SMALL, DETERMINISTIC))
        except ConfigError as error:
            yield name, error.facts["problems"][0].partition(" -> ")[0]
        else:
            yield name, ""


def numbers_of(name: str, tree: Tree, run_dir: Path) -> Numbers:
    """Train one step of the tree's own example with the tree's own code."""
    command = [sys.executable, "-m", "loopwright.cli", "train", f"examples/{name}.yaml", "--fresh"]
    command += [*SMALL, DETERMINISTIC, f"trainer.run_dir={run_dir}"]
    done = subprocess.run(
        command,
        cwd=tree.path,
        env=tree.environment(THREADS),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise BenchError(
            f"the {tree.name} tree cannot train examples/{name}.yaml: {done.stderr.strip()[-2000:]}",
            remedy="name examples that both trees can run",
        )
    return read_numbers(RunFolder(run_dir))
