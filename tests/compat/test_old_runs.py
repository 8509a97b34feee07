"""Run folders and configs of earlier releases: they resume, and every command reads them.

make_runs.py made the archives, each with the code of its release. A run in them was stopped before its last step.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loopwright.cli import main
from loopwright.runs.stored_run import StoredRun
from loopwright.track.jsonl import read_jsonl

Command = Callable[..., tuple[int, str, str]]

HERE = Path(__file__).parent
ARCHIVES = sorted(HERE.glob("*/*.tar.xz"))
NAMES = [f"{archive.parent.name}-{archive.name.removesuffix('.tar.xz')}" for archive in ARCHIVES]
STEPS = 8
"""Of each run; it was stopped at step 2 or 3."""
DEADLINE = 120

of_each_run = pytest.mark.parametrize("archive", ARCHIVES, ids=NAMES)
of_one_at_least = pytest.mark.parametrize(
    "archive",
    [
        # One of them stands for all in `make check`: the others start processes and servers.
        pytest.param(archive, id=name, marks=[] if name.endswith("colocated") else [pytest.mark.real])
        for archive, name in zip(ARCHIVES, NAMES, strict=True)
    ],
)


@pytest.fixture
def place(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive unpacked, in the current folder. `base` names the folder of the config, so no archive can hold it."""
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (tmp_path / "run" / "base").write_text(f"{tmp_path}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Run a command in this process; gives exit code, stdout and stderr."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run_it(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    yield run_it
    for number, handler in handlers.items():
        signal.signal(number, handler)


def steps_of(place: Path) -> list[int]:
    """The steps whose training is in the metrics, each as often as it is there."""
    return [record["step"] for record in read_jsonl(place / "run" / "metrics.jsonl") if "reward/mean" in record]


def test_there_are_runs_to_look_at() -> None:
    assert {"0.1.0-agents", "0.1.0-colocated", "0.1.0-disaggregated"} <= set(NAMES)
    assert sum(archive.stat().st_size for archive in ARCHIVES) < 300_000


@of_each_run
def test_it_is_shown_and_audited_as_it_was_left(place: Path, command: Command) -> None:
    code, out, err = command("show", "run", "--step", "2", "--limit", "1", "--tokens", "--logprobs")
    assert (code, err) == (0, "")
    assert "step 2" in out
    assert "<|im_start|>" in out
    code, out, _ = command("show", "run", "--eval", "--limit", "1")
    assert code == 0
    assert "task e0" in out
    code, out, err = command("status", "run")
    assert (code, err) == (0, "")
    assert f"of {STEPS}" in out
    code, out, err = command("audit", "run", "--json")
    assert (code, err) == (0, "")
    audited = json.loads(out)
    assert audited["clean"]
    assert audited["lineages"] == 1


@of_each_run
def test_its_config_is_sound(place: Path, command: Command) -> None:
    for file in ("run.yaml", "run/config.yaml"):
        code, _, err = command("config", file)
        assert (code, err) == (0, ""), file
    assert command("check", "run.yaml")[0] == 0


@of_one_at_least
def test_it_resumes_to_its_end_and_is_evaluated(place: Path, command: Command) -> None:
    last = max(steps_of(place))
    assert last < STEPS
    before = [rollout.key for rollout in StoredRun(place / "run" / "rollouts.sqlite").rollouts(2)]

    # Of an unfinished run, the newest checkpoint is evaluated.
    code, out, _ = command("eval", "run", "--json")
    found = json.loads(out)
    assert (code, found["step"], found["errors"]) == (0, 2, [])
    assert found["metrics"]["eval/eval/sampled/tasks"] == 3

    code, _, err = command("train", "run.yaml")
    assert code == 0, err
    assert steps_of(place) == list(range(1, STEPS + 1)), "a step was lost, or trained again"
    stored = StoredRun(place / "run" / "rollouts.sqlite")
    assert stored.steps() == tuple(range(1, STEPS + 1))
    assert [rollout.key for rollout in stored.rollouts(2)] == before
    assert (place / "run" / "export" / "model.safetensors").exists()

    code, out, _ = command("eval", "run", "--json")
    assert (code, json.loads(out)["step"]) == (0, STEPS)
    code, out, err = command("audit", "run", "--json")
    assert (code, err, json.loads(out)["lineages"]) == (0, "", 2)
    code, out, _ = command("show", "run")
    assert code == 0
    assert f"step {STEPS}" in out


@pytest.mark.real
@of_each_run
def test_it_resumes_as_a_user_does_it(place: Path) -> None:
    """The commands in processes of their own, and a train step of the old run computed once more."""
    for arguments in (["train", "run.yaml"], ["replay", "run", "--step", "2"], ["audit", "run"]):
        done = subprocess.run(
            [sys.executable, "-m", "loopwright.cli", *arguments],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
